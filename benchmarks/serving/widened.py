"""The demo model and its heads in the size of a larger one: it says what they say, and costs what so many parameters
cost.

What is new of a matrix is zero, and layers that are new add nothing. A norm divides by more numbers, of which the new
ones are zero, so its weights and its epsilon make up for that.
"""

import json
import math
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import penstock_server
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import pad

DEMO = Path(penstock_server.__file__).parent / "demo_model"
# The sizes of the demo model.
_OLD_SIZE, _HEAD_DIM, _OLD_LAYERS, _VOCAB = 192, 64, 4, 2048
_CONFIG = "config.json"


class Widths(NamedTuple):
    """Sizes of the larger model, none of them smaller than the demo model's."""

    size: int
    intermediate: int
    heads: int
    layers: int
    dtype: torch.dtype = torch.float32

    @property
    def norm_scale(self) -> float:
        """The factor by which the weights of a norm are multiplied."""
        return math.sqrt(_OLD_SIZE / self.size)

    @property
    def num_parameters(self) -> int:
        """The number of parameters of the model, whose embedding is also its head."""
        size, matrices = self.size, 4 * self.heads * _HEAD_DIM + 3 * self.intermediate
        return _VOCAB * size + self.layers * (matrices + 2) * size + size

    @property
    def config(self) -> dict[str, int]:
        return {
            "hidden_size": self.size,
            "intermediate_size": self.intermediate,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "num_hidden_layers": self.layers,
        }


# By their numbers of parameters. Norms of the second are multiplied by a quarter, which bfloat16 has without rounding.
MILLIONS_30 = Widths(512, 1408, 8, 9)
BILLION = Widths(3072, 8192, 48, 9, torch.bfloat16)


def widen(to: Path, widths: Widths = MILLIONS_30) -> None:
    """Write the model, with folders `eagle` and `medusa`."""
    shutil.copytree(DEMO, to)
    head = {"hidden_size": widths.size}
    _widen_folder(to, "model.safetensors", _model, widths, widths.config)
    _widen_folder(to / "eagle", "model.safetensors", _eagle, widths, head)
    _widen_folder(to / "medusa", "medusa_lm_head.safetensors", _medusa, widths, {})


_Tensors = dict[str, torch.Tensor]


def _widen_folder(
    folder: Path,
    file: str,
    wide: Callable[[_Tensors, Widths], _Tensors],
    widths: Widths,
    sizes: dict[str, int],
) -> None:
    path, config = folder / file, json.loads((folder / _CONFIG).read_text())
    config |= {**sizes, "dtype": str(widths.dtype).removeprefix("torch.")}
    if "rms_norm_eps" in config:
        config["rms_norm_eps"] *= widths.norm_scale**2
    (folder / _CONFIG).write_text(json.dumps(config))
    tensors = {name: _typed(tensor, widths.dtype) for name, tensor in load_file(path).items()}
    written = {name: it.contiguous() for name, it in wide(tensors, widths).items()}
    save_file(written, path, metadata={"format": "pt"})


def _typed(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _model(tensors: _Tensors, widths: Widths) -> _Tensors:
    wide = {name: _wide(name, tensor, widths) for name, tensor in tensors.items()}
    first = {name: tensor for name, tensor in wide.items() if ".layers.0." in name}
    for layer in range(_OLD_LAYERS, widths.layers):
        for name, tensor in first.items():
            adds = "o_proj" in name or "down_proj" in name
            wide[name.replace(".0.", f".{layer}.")] = torch.zeros_like(tensor) if adds else tensor.clone()
    return wide


def _wide(name: str, tensor: torch.Tensor, widths: Widths) -> torch.Tensor:
    if tensor.dim() == 1:
        return _norm(tensor, widths)
    size, intermediate, heads = widths.size, widths.intermediate, widths.heads * _HEAD_DIM
    kinds = {
        "embed_tokens": (len(tensor), size),
        "o_proj": (size, heads),
        "down_proj": (size, intermediate),
        "gate_proj": (intermediate, size),
        "up_proj": (intermediate, size),
    }
    return _filled(tensor, *next((sizes for kind, sizes in kinds.items() if kind in name), (heads, size)))


def _eagle(tensors: _Tensors, widths: Widths) -> _Tensors:
    """It keeps its own heads; `fc` reads three hidden states side by side, attention two."""
    return {name: _wide_eagle(name, tensor, widths) for name, tensor in tensors.items()}


def _wide_eagle(name: str, tensor: torch.Tensor, widths: Widths) -> torch.Tensor:
    if name in ("d2t", "t2d"):
        return tensor
    if tensor.dim() == 1:
        return _norm(tensor, widths)
    size = widths.size
    if "o_proj" in name or "down_proj" in name:
        return _filled(tensor, size, tensor.shape[1])
    columns = [_filled(part, len(part), size) for part in torch.split(tensor, _OLD_SIZE, dim=1)]
    rows = size if name.startswith("fc") else len(tensor)
    return _filled(torch.cat(columns, dim=1), rows, len(columns) * size)


def _medusa(tensors: _Tensors, widths: Widths) -> _Tensors:
    filled = partial(_filled, rows=widths.size, columns=widths.size)
    return {
        name: pad(tensor, (0, widths.size - len(tensor))) if tensor.dim() == 1 else filled(tensor)
        for name, tensor in tensors.items()
    }


def _norm(weight: torch.Tensor, widths: Widths) -> torch.Tensor:
    return pad(weight * widths.norm_scale, (0, widths.size - len(weight)))


def _filled(tensor: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    return pad(tensor, (0, columns - tensor.shape[1], 0, rows - len(tensor)))
