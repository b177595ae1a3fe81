"""Folders of LoRA adapters with random numbers, for the linear layers of models of Llama's shape."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

ALL_LINEAR = tuple(f"self_attn.{kind}_proj" for kind in "qkvo") + tuple(
    f"mlp.{kind}_proj" for kind in ("gate", "up", "down")
)


def make_adapter(
    folder: Path, config: Mapping[str, Any], seed: int, rank: int, modules: Sequence[str] = ALL_LINEAR
) -> Path:
    """Write an adapter of these layers. `config`: what config.json has."""
    generator = torch.Generator().manual_seed(seed)
    sizes = _linear_sizes(config)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for module in modules:
            num_outputs, num_inputs = sizes[module]
            name = f"base_model.model.model.layers.{layer}.{module}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(rank, num_inputs, generator=generator) * 0.01
            tensors[f"{name}.lora_B.weight"] = torch.randn(num_outputs, rank, generator=generator) * 0.01
    folder.mkdir(parents=True)
    targets = [module.rpartition(".")[2] for module in modules]
    described = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": targets}
    (folder / "adapter_config.json").write_text(json.dumps(described))
    save_file({name: it.bfloat16() for name, it in tensors.items()}, folder / "adapter_model.safetensors")
    return folder


def _linear_sizes(config: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of the linear layers."""
    hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    dim = config.get("head_dim") or hidden // heads
    keys = dim * (config["num_key_value_heads"] or heads)
    return {
        "self_attn.q_proj": (heads * dim, hidden),
        "self_attn.o_proj": (hidden, heads * dim),
        **{f"self_attn.{kind}_proj": (keys, hidden) for kind in "kv"},
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
