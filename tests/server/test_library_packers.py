"""Checkpoints that formats' own libraries pack give the tokens of what these say they mean, and shards do.

Other tests have packers of their own, written from the rules; these are independent of how we understand them.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packers.recipes import RECIPES
from quantized_checks import check_ranks, check_tokens
from quantized_models import Quantized, change_settings, is_linear
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

TESTS = Path(__file__).parents[1]
PYTHON = TESTS.parent / ".venv-packers" / "bin" / "python"
TIMEOUT_S = 300
# Whole groups and words in every matrix; bitsandbytes restores rows that are no whole number of its blocks wrongly.
SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "intermediate_size": 128,
}


def refuse(reason: str) -> None:
    """A library that is not there is no reason to fail on a laptop, but one where nobody looks."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


@pytest.fixture(scope="module")
def healthy(saved_model: Callable[..., Any]) -> Path:
    folder: Path = saved_model(num_hidden_layers=2, **SIZES).folder
    return folder


@pytest.fixture(scope="module")
def packed(healthy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each recipe, all written by one process."""
    if not PYTHON.exists():
        refuse("no .venv-packers: `make packers` installs it")
    folder = tmp_path_factory.mktemp("packed")
    numbers = load_file(healthy / "model.safetensors")
    save_file(
        {name: tensor for name, tensor in numbers.items() if is_linear(name)}, folder / "matrices.safetensors"
    )
    command = [str(PYTHON), "-m", "packers", str(folder / "matrices.safetensors"), str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def model(
    healthy: Path, packed: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Quantized]:
    made: dict[str, Quantized] = {}

    def make(name: str) -> Quantized:
        if (packed / name / "reason").exists():
            refuse((packed / name / "reason").read_text())
        if name not in made:
            made[name] = assembled(
                healthy, packed / name, tmp_path_factory.mktemp("-".join(name.split())) / "model"
            )
        return made[name]

    return make


def assembled(healthy: Path, packed: Path, folder: Path) -> Quantized:
    """The model with what a library wrote in the place of its matrices, and the oracle of what that means."""
    shutil.copytree(healthy, folder)
    numbers = load_file(folder / "model.safetensors")
    save_file({**numbers, **load_file(packed / "meant.safetensors")}, folder / "model.safetensors")
    oracle: Any = AutoModelForCausalLM.from_pretrained(folder)
    plain = {name: tensor for name, tensor in numbers.items() if not is_linear(name)}
    with safe_open(packed / "stored.safetensors", "pt") as opened:
        metadata = opened.metadata() or {}
    if metadata:
        # torchao lists the others, too.
        metadata |= {name: json.dumps({"_type": "Tensor"}) for name in plain}
        metadata["tensor_names"] = json.dumps(list(metadata))
    save_file({**plain, **load_file(packed / "stored.safetensors")}, folder / "model.safetensors", metadata)
    change_settings(folder, json.loads((packed / "settings.json").read_text()))
    return Quantized(folder, oracle.eval())


@pytest.mark.parametrize("name", RECIPES)
def test_tokens_are_those_of_what_the_library_restores(name: str, model: Callable[[str], Quantized]) -> None:
    check_tokens(model(name))


@pytest.mark.parametrize(
    "name", ["torchao int4 in groups", "compressed-tensors W5A16 with zeros", "bitsandbytes nf4 nested"]
)
def test_two_shards_give_them_too(
    name: str, model: Callable[[str], Quantized], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_ranks(model(name), 2, monkeypatch)
