"""InternLM2 is not among the models of transformers: its folder is a Llama's, with InternLM2's names and fused rows."""

import json
from pathlib import Path
from typing import Any

import tiny_model
import torch
from safetensors.torch import save_file

_NAMES = {
    "model.embed_tokens": "model.tok_embeddings",
    "lm_head": "output",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
}


def save(folder: Path, options: dict[str, Any]) -> Any:
    """Write the folder as the makers of InternLM2 do; returns the Llama that it is."""
    model = tiny_model.save(folder, tiny_model.TinyModel("llama", options))
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "internlm2", "bias": False, "auto_map": {"AutoModel": "modeling_internlm2.X"}}
    config["rope_scaling"] = {"type": "dynamic", "factor": 2.0}
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    (folder / "config.json").write_text(json.dumps(config))
    save_file(_renamed(model), folder / "model.safetensors")
    return model


def _renamed(model: Any) -> dict[str, torch.Tensor]:
    state = dict(model.state_dict())
    config = model.config
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        query, key, value = (state.pop(f"{prefix}.self_attn.{part}_proj.weight") for part in "qkv")
        groups = [part.unflatten(0, (config.num_key_value_heads, -1)) for part in (query, key, value)]
        state[f"{prefix}.attention.wqkv.weight"] = torch.cat(groups, dim=1).flatten(0, 1)
    renamed = {}
    for name, tensor in state.items():
        for old, new in _NAMES.items():
            name = name.replace(old, new)
        renamed[name] = tensor.contiguous()
    return renamed
