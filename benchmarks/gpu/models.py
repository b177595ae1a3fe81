"""Folders of models without weights, for measuring: a config.json of a known shape, and a tokenizer to match."""

import json
from pathlib import Path
from typing import Any

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}
_QWEN = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
}
_MIXTRAL = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "rms_norm_eps": 1e-5, "rope_theta": 1000000.0,
    "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip


def _shape(
    base: dict[str, Any],
    hidden: int,
    inner: int,
    layers: int,
    heads: int,
    kv_heads: int,
    vocab: int,
    **more: Any,
) -> dict[str, Any]:
    return {
        **base, "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 128, "vocab_size": vocab,
        "max_position_embeddings": 32768, "torch_dtype": "bfloat16", "hidden_act": "silu",
        "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, **more,
    }  # fmt: skip


MODELS: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": _shape(_LLAMA, 4096, 14336, 32, 32, 8, 128256),
    "qwen3-0.6b": _shape(_QWEN, 1024, 3072, 28, 16, 8, 151936, tie_word_embeddings=True),
    # The layers of Mixtral, an eighth of their number: its weights and a cache fit together.
    "mixtral-like": _shape(_MIXTRAL, 4096, 14336, 4, 32, 8, 32000),
    # For a run of the script itself on a CPU.
    "tiny": _shape(_LLAMA, 64, 128, 2, 4, 2, 512, head_dim=16, max_position_embeddings=512),
}


def write_folder(name: str, folder: Path) -> Path:
    """Writes a folder that `--load-format dummy` can serve."""
    config = MODELS[name]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    words = {f"w{number}": number for number in range(config["vocab_size"])}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"},
        "pre_tokenizer": {"type": "WhitespaceSplit"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder
