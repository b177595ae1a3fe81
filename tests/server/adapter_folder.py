"""Writes small adapters for tiny Llamas by hand, whole or broken."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny_model import sizes

PREFIX = "base_model.model.model.layers"
CONFIG = {
    "peft_type": "LORA",
    "r": 4,
    "lora_alpha": 8,
    "target_modules": ["q_proj", "down_proj"],
    "bias": "none",
}


def tensors(rank: int = 4, seed: int = 0, size: float = 0.2) -> dict[str, torch.Tensor]:
    """Matrices for the targets of CONFIG in each layer, large enough to change tokens."""
    torch.manual_seed(seed)
    hidden, inner = sizes()["hidden_size"], sizes()["intermediate_size"]
    heads = sizes()["num_attention_heads"] * sizes()["head_dim"]
    shapes = {"self_attn.q_proj": (heads, hidden), "mlp.down_proj": (hidden, inner)}
    found = {}
    for layer in range(sizes()["num_hidden_layers"]):
        for module, (num_outputs, num_inputs) in shapes.items():
            name = f"{PREFIX}.{layer}.{module}"
            found[f"{name}.lora_A.weight"] = torch.randn(rank, num_inputs) * size
            found[f"{name}.lora_B.weight"] = torch.randn(num_outputs, rank) * size
    return found


def write(folder: Path, weights: dict[str, torch.Tensor] | None = None, **config: Any) -> Path:
    """A folder with these tensors; keys of `config` replace those of CONFIG."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **config}))
    save_file(tensors() if weights is None else weights, folder / "adapter_model.safetensors")
    return folder
