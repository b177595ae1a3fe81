"""`.venv-packers/bin/python -m packers WEIGHTS FOLDER`: packs the matrices of a safetensors file in every way.

Of each recipe it writes into FOLDER/NAME what the library would put into a checkpoint (`stored.safetensors`), the
numbers that the library says these mean (`meant.safetensors`) and `settings.json`; or, if that fails, the `reason`.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from packers.recipes import RECIPES, Recipe


def write(recipe: Recipe, matrices: dict[str, torch.Tensor], folder: Path) -> None:
    """All matrices by one recipe."""
    pack, settings = recipe()
    stored: dict[str, torch.Tensor] = {}
    meant: dict[str, torch.Tensor] = {}
    metadata: dict[str, str] = {}
    for name, matrix in matrices.items():
        found = pack(name.removesuffix(".weight"), matrix)
        stored |= {key: tensor.contiguous().clone() for key, tensor in found.tensors.items()}
        meant[name] = found.meant.float().contiguous()
        metadata |= found.metadata
    save_file(stored, folder / "stored.safetensors", metadata)
    save_file(meant, folder / "meant.safetensors")
    (folder / "settings.json").write_text(json.dumps(settings))


def main(weights: Path, folder: Path) -> None:
    """A recipe that fails says why, for the test that is skipped then."""
    matrices = load_file(weights)
    for name, recipe in RECIPES.items():
        (folder / name).mkdir(parents=True)
        torch.manual_seed(0)
        try:
            write(recipe, matrices, folder / name)
        except Exception as error:  # whatever the library raises, it is this recipe that it cannot do here
            (folder / name / "reason").write_text(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
