"""`--rope-scaling` and `--rope-factor`: a scaling of positions in the place of config.json's."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from penstock_server.architectures.registry import load_spec
from penstock_server.base.config import ModelOverrides, RopeOverride
from penstock_server.base.errors import StartError
from penstock_server.files.model_folder import open_folder
from penstock_server.network.layers.rotary import Rotary
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

CPU = torch.device("cpu")


@pytest.fixture
def folder(saved_model: Callable[..., Any], tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved_model().folder, tmp_path / "model"))


def _inv_freq(folder: Path, override: RopeOverride | None) -> tuple[int, torch.Tensor]:
    spec = load_spec(folder, override)
    return spec.max_sequence_len, Rotary(spec.ropes[0], spec.max_sequence_len, CPU).inv_freq


def test_linear_scaling_is_that_of_a_config_with_it(folder: Path) -> None:
    length, plain = _inv_freq(folder, None)
    scaled_length, scaled = _inv_freq(folder, RopeOverride("linear", 4.0))
    assert scaled_length == 4 * length
    assert torch.equal(scaled, plain / 4)


def test_dynamic_scaling_is_that_of_transformers_for_the_longest_sequence(folder: Path) -> None:
    length, plain = _inv_freq(folder, None)
    scaled_length, scaled = _inv_freq(folder, RopeOverride("dynamic", 2.0))
    config = transformers.AutoConfig.from_pretrained(folder)
    parameters = {**config.rope_parameters, "rope_type": "dynamic", "factor": 2.0}
    config.rope_parameters = parameters
    expected, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, CPU, seq_len=scaled_length)
    assert scaled_length == 2 * length
    torch.testing.assert_close(scaled, expected)
    # Within the length that the model was made for, nothing changes.
    spec = load_spec(folder, RopeOverride("dynamic", 2.0))
    assert torch.equal(Rotary(spec.ropes[0], length, CPU).inv_freq, plain)


def test_a_scaling_of_config_json_is_replaced(folder: Path) -> None:
    expected = _inv_freq(folder, RopeOverride("linear", 2.0))
    path = folder / "config.json"
    config = json.loads(path.read_text())
    theta = config.pop("rope_parameters", {}).get("rope_theta", config.get("rope_theta"))
    path.write_text(
        json.dumps({**config, "rope_parameters": {"rope_type": "yarn", "factor": 8.0, "rope_theta": theta}})
    )
    replaced = _inv_freq(folder, RopeOverride("linear", 2.0))
    assert replaced[0] == expected[0]
    assert torch.equal(replaced[1], expected[1])


def test_models_without_rotary_positions_are_refused(saved_model: Callable[..., Any]) -> None:
    overrides = ModelOverrides(rope=RopeOverride("linear", 2.0))
    with pytest.raises(StartError, match="are not rotary"):
        open_folder(saved_model("gpt2").folder, overrides=overrides)
    with pytest.raises(StartError, match="the code of transformers"):
        open_folder(saved_model().folder, model_impl="transformers", overrides=overrides)


def test_layers_that_rotate_by_different_angles_are_refused(saved_model: Callable[..., Any]) -> None:
    made = saved_model("granite_swa", hidden_size=64, head_dim=None, layer_rope_theta=[10000.0, 0.0, 500.0])
    with pytest.raises(StartError, match="the layers of this model rotate by different angles"):
        load_spec(made.folder, RopeOverride("linear", 2.0))
    made = saved_model("granite_swa", hidden_size=64, head_dim=None, layer_rope_theta=[10000.0, 0.0, 10000.0])
    assert [rope.kind for rope in load_spec(made.folder, RopeOverride("linear", 2.0)).ropes] == ["linear"]
