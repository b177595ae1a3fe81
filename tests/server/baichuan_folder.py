"""Baichuan is not among the models of transformers: its folder is a Llama's with fused rows, and so is its oracle, with
slopes in the place of rotations and rows of length 1 in its head where config.json means these."""

import json
from pathlib import Path
from typing import Any

import tiny_model
import torch
from safetensors.torch import load_file, save_file
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

# The keys that Baichuan's config.json does not have.
_NOT_WRITTEN = ("rope_parameters", "head_dim", "num_key_value_heads", "attention_bias", "mlp_bias")


class WithSlopes:
    """A Llama that does not rotate, all positions being 0, and sees distances by the slopes of BLOOM."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, tokens: torch.Tensor) -> Any:
        """[1, num_tokens] to what the Llama returns."""
        size, num_heads = tokens.shape[1], self.model.config.num_attention_heads
        slopes = build_alibi_tensor(
            torch.ones_like(tokens), num_heads, torch.float32
        )  # [heads, 1, num_tokens]
        later = torch.full((size, size), float("-inf")).triu(1)
        mask = slopes[None] + later
        return self.model(tokens, position_ids=torch.zeros_like(tokens), attention_mask=mask)


def save(folder: Path, options: dict[str, Any]) -> Any:
    """Write the folder as the makers of Baichuan do; returns what computes it."""
    return convert(folder, tiny_model.save(folder, tiny_model.TinyModel("llama", options)))


def convert(folder: Path, model: Any) -> Any:
    """Make a Llama's folder one of Baichuan, and what computes the Llama what computes that."""
    config = json.loads((folder / "config.json").read_text())
    config = {key: value for key, value in config.items() if key not in _NOT_WRITTEN}
    auto_map = {"AutoModelForCausalLM": "modeling_baichuan.BaichuanForCausalLM"}
    config |= {"model_type": "baichuan", "architectures": ["BaichuanForCausalLM"], "auto_map": auto_map}
    has_slopes = "model_max_length" in config
    if has_slopes:
        del config["max_position_embeddings"]
    (folder / "config.json").write_text(json.dumps(config))
    save_file(_packed(load_file(folder / "model.safetensors")), folder / "model.safetensors")
    if config["vocab_size"] == 125_696:
        weight = model.lm_head.weight.data
        weight /= weight.norm(dim=1, keepdim=True)
    return WithSlopes(model) if has_slopes else model


def _packed(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """With the rows of queries, keys and values in one tensor, and so their scales."""
    found = {name: tensor for name, tensor in tensors.items() if not _is_projection(name)}
    for name, queries in tensors.items():
        if "self_attn.q_proj" in name:
            others = [tensors[name.replace("q_proj", other)] for other in ("k_proj", "v_proj")]
            found[name.replace("q_proj", "W_pack")] = torch.cat([queries, *others])
    return found


def _is_projection(name: str) -> bool:
    return any(f"self_attn.{part}_proj" in name for part in "qkv")
