"""Models of random weights, for timing. None has an end of sequence: each generates as many tokens as requested.

`make` writes a Llama with a long context, 8 layers, 256 wide, and a token for each ASCII character; `make_hybrid` one
of that size of which three layers in four are recurrent, `make_long_hybrid` a smaller one for long contexts;
`make_next`, `make_latent` and `make_unlike_layers` have the shapes of Qwen3-Next, DeepSeek V3 and Gemma 4 in small.
"""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

CONTEXT_LEN = 16_384
_PRINTABLE = [chr(code) for code in range(33, 127)]
_SPACE = "Ġ"
_SHAPE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": CONTEXT_LEN,
    "bos_token_id": None,
    "eos_token_id": None,
}


def make(folder: Path, tokenizer: Tokenizer | None = None) -> Path:
    """Write the model with the long context."""
    tokenizer = tokenizer or _tokenizer()
    config = LlamaConfig(vocab_size=tokenizer.get_vocab_size(), **_SHAPE)
    return _save(folder, tokenizer, LlamaForCausalLM, config)


def make_hybrid(folder: Path) -> Path:
    """Write the model with recurrent layers."""
    tokenizer = _tokenizer()
    recurrent: dict[str, Any] = dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 4)
    recurrent |= dict.fromkeys(("head_dim", "linear_key_head_dim", "linear_value_head_dim"), 64)
    config = Qwen3_5TextConfig(vocab_size=tokenizer.get_vocab_size(), **_SHAPE, **recurrent)
    return _save(folder, tokenizer, Qwen3_5ForCausalLM, config)


def make_long_hybrid(folder: Path, max_len: int) -> Path:
    """Three recurrent layers and one that attends, with one small head."""
    sizes = {"num_hidden_layers": 4, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 32}
    config = Qwen3_5TextConfig(
        vocab_size=95,
        **_SHAPE | sizes | {"max_position_embeddings": max_len},
        linear_num_key_heads=4,
        linear_num_value_heads=8,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
    )
    return _save(folder, _tokenizer(), Qwen3_5ForCausalLM, config)


_SPARSE: dict[str, Any] = {
    "vocab_size": 8192,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "moe_intermediate_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_experts_per_tok": 4,
    "max_position_embeddings": CONTEXT_LEN,
    "bos_token_id": None,
    "eos_token_id": None,
}


def make_next(folder: Path) -> Path:
    """110M parameters, of which a token uses about a third."""
    config = Qwen3NextConfig(
        **_SPARSE,
        num_key_value_heads=2,
        head_dim=64,
        num_experts=16,
        shared_expert_intermediate_size=256,
        linear_num_key_heads=4,
        linear_num_value_heads=8,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
    )
    return _save(folder, _tokenizer(), Qwen3NextForCausalLM, config)


def make_latent(folder: Path) -> Path:
    """Write a model that attends to latents, as large as the one of `make_next`."""
    config = DeepseekV3Config(
        **_SPARSE,
        num_key_value_heads=8,
        n_routed_experts=16,
        n_group=4,
        topk_group=2,
        n_shared_experts=1,
        first_k_dense_replace=1,
        q_lora_rank=256,
        kv_lora_rank=128,
        qk_rope_head_dim=32,
        qk_nope_head_dim=64,
        v_head_dim=64,
    )
    # Published files name this function; transformers knows no other.
    config.scoring_func = "sigmoid"
    return _save(folder, _tokenizer(), DeepseekV3ForCausalLM, config)


def make_unlike_layers(folder: Path) -> Path:
    """Gemma 4's shape: heads of two sizes, an embedding for each layer, layers that read the keys of others."""
    config_class: Any = Gemma4TextConfig
    config = config_class(
        vocab_size=8192,
        vocab_size_per_layer_input=8192,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=12,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        global_head_dim=128,
        sliding_window=512,
        hidden_size_per_layer_input=64,
        num_kv_shared_layers=4,
        max_position_embeddings=CONTEXT_LEN,
        final_logit_softcapping=30.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    return _save(folder, _tokenizer(), Gemma4ForCausalLM, config)


def _save(folder: Path, tokenizer: Tokenizer, architecture: Any, config: PretrainedConfig) -> Path:
    torch.manual_seed(7)
    architecture(config).save_pretrained(folder)
    save_tokenizer(folder, tokenizer)
    return folder


def config_110m() -> LlamaConfig:
    """The shape of a 110M-parameter model."""
    return LlamaConfig(
        vocab_size=32_000,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=12,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )


def config_of_8b_layers() -> LlamaConfig:
    """Two layers of the shape that an 8B-parameter model has, with a small vocabulary."""
    return LlamaConfig(
        vocab_size=4096,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=2,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )


def save_tokenizer(folder: Path, tokenizer: Tokenizer | None = None) -> None:
    """Ids of a larger vocabulary beyond these tokens have no text."""
    tokenizer = tokenizer or _tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": CONTEXT_LEN}))


def _tokenizer() -> Tokenizer:
    vocabulary = {token: index for index, token in enumerate([_SPACE, *_PRINTABLE])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
