"""Llamas of random weights, for timing. None has an end of sequence: each generates as many tokens as requested.

`make` writes one with a long context, 8 layers, 256 wide, and a token for each ASCII character.
"""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

CONTEXT_LEN = 16_384
_PRINTABLE = [chr(code) for code in range(33, 127)]
_SPACE = "Ġ"


def make(folder: Path, tokenizer: Tokenizer | None = None) -> Path:
    """Write the model with the long context."""
    tokenizer = tokenizer or _tokenizer()
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT_LEN,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(7)
    LlamaForCausalLM(config).save_pretrained(folder)
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
