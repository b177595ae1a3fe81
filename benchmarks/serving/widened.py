"""The demo model and its heads in the size of a larger one: it says what they say, and costs what some 30 million
parameters cost.

What is new of a matrix is zero, and layers that are new add nothing. A norm divides by more numbers, of which the new
ones are zero, so its weights and its epsilon make up for that.
"""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock_server
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import pad

DEMO = Path(penstock_server.__file__).parent / "demo_model"
SIZE, _INTERMEDIATE, _HEADS, _LAYERS = 512, 1408, 8, 9
# Of the demo model.
_OLD_SIZE, _HEAD_DIM, _OLD_LAYERS = 192, 64, 4
_NORM_SCALE = math.sqrt(_OLD_SIZE / SIZE)
_CONFIG = "config.json"


def widen(to: Path) -> None:
    """Write the model, with folders `eagle` and `medusa`."""
    shutil.copytree(DEMO, to)
    _widen_folder(to, "model.safetensors", _model, {**_sizes(), "num_hidden_layers": _LAYERS})
    _widen_folder(to / "eagle", "model.safetensors", _eagle, {"hidden_size": SIZE})
    _widen_folder(to / "medusa", "medusa_lm_head.safetensors", _medusa, {})


def _sizes() -> dict[str, int]:
    return {
        "hidden_size": SIZE,
        "intermediate_size": _INTERMEDIATE,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _HEADS,
    }


_Tensors = dict[str, torch.Tensor]


def _widen_folder(
    folder: Path, file: str, wide: Callable[[_Tensors], _Tensors], sizes: dict[str, int]
) -> None:
    path, config = folder / file, json.loads((folder / _CONFIG).read_text())
    config |= {**sizes, "dtype": "float32"}
    if "rms_norm_eps" in config:
        config["rms_norm_eps"] *= _NORM_SCALE**2
    (folder / _CONFIG).write_text(json.dumps(config))
    tensors = {name: _in_float(tensor) for name, tensor in load_file(path).items()}
    save_file({name: it.contiguous() for name, it in wide(tensors).items()}, path, metadata={"format": "pt"})


def _in_float(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


def _model(tensors: _Tensors) -> _Tensors:
    wide = {name: _wide(name, tensor) for name, tensor in tensors.items()}
    first = {name: tensor for name, tensor in wide.items() if ".layers.0." in name}
    for layer in range(_OLD_LAYERS, _LAYERS):
        for name, tensor in first.items():
            adds = "o_proj" in name or "down_proj" in name
            wide[name.replace(".0.", f".{layer}.")] = torch.zeros_like(tensor) if adds else tensor.clone()
    return wide


def _wide(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() == 1:
        return _norm(tensor)
    heads = _HEADS * _HEAD_DIM
    kinds = {
        "embed_tokens": (len(tensor), SIZE),
        "o_proj": (SIZE, heads),
        "down_proj": (SIZE, _INTERMEDIATE),
        "gate_proj": (_INTERMEDIATE, SIZE),
        "up_proj": (_INTERMEDIATE, SIZE),
    }
    return _filled(tensor, *next((sizes for kind, sizes in kinds.items() if kind in name), (heads, SIZE)))


def _eagle(tensors: _Tensors) -> _Tensors:
    """It keeps its own heads; `fc` reads three hidden states side by side, attention two."""
    return {name: _wide_eagle(name, tensor) for name, tensor in tensors.items()}


def _wide_eagle(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if name in ("d2t", "t2d"):
        return tensor
    if tensor.dim() == 1:
        return _norm(tensor)
    columns = [_filled(part, len(part), SIZE) for part in torch.split(tensor, _OLD_SIZE, dim=1)]
    if "o_proj" in name or "down_proj" in name:
        return _filled(tensor, SIZE, tensor.shape[1])
    return _filled(
        torch.cat(columns, dim=1), SIZE if name.startswith("fc") else len(tensor), len(columns) * SIZE
    )


def _medusa(tensors: _Tensors) -> _Tensors:
    return {
        name: pad(tensor, (0, SIZE - len(tensor))) if tensor.dim() == 1 else _filled(tensor, SIZE, SIZE)
        for name, tensor in tensors.items()
    }


def _norm(weight: torch.Tensor) -> torch.Tensor:
    return pad(weight * _NORM_SCALE, (0, SIZE - len(weight)))


def _filled(tensor: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    return pad(tensor, (0, columns - tensor.shape[1], 0, rows - len(tensor)))


def num_parameters(folder: Path) -> int:
    """Of the model."""
    tensors: dict[str, Any] = load_file(folder / "model.safetensors")
    return sum(tensor.numel() for tensor in tensors.values())
