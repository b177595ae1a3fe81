"""Makes tiny random models, with sizes chosen to be odd: what only works for powers of two fails here.

They are made by transformers itself, which is the oracle of the tests; nothing is downloaded.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
)

_CORPUS = (
    "the quick brown fox jumps over the lazy dog",
    "a penstock is the gated pipe that feeds a turbine",
    "0123456789",
)


@dataclass(frozen=True)
class TinyModel:
    """A recipe: a family, and what differs from the small defaults; None leaves a default out."""

    family: str = "llama"
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0


def sizes() -> dict[str, Any]:
    """Odd sizes; four query heads per group of two, so that two and four ranks can share them."""
    return {
        "vocab_size": 301,
        "hidden_size": 72,
        "intermediate_size": 132,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 18,
        "max_position_embeddings": 200,
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        # Large enough that different tokens get clearly different logits.
        "initializer_range": 0.3,
    }


def build(recipe: TinyModel) -> Any:
    """The model itself, in float32."""
    options = {key: value for key, value in {**sizes(), **recipe.options}.items() if value is not None}
    torch.manual_seed(recipe.seed)
    config = CONFIG_MAPPING[recipe.family](**options)
    # Some are among those that see, though they do not.
    is_causal = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    auto: Any = AutoModelForCausalLM if is_causal else AutoModelForImageTextToText
    model: Any = auto.from_config(config).eval()
    shake(model)
    return model


@torch.no_grad()
def shake(model: Any) -> None:
    """Random numbers where transformers starts with the same ones, which would hide mistakes with them."""
    for name, parameter in model.named_parameters():
        # Norms start at one, and biases and more at zero.
        is_norm = "norm" in name or ".ln_" in name
        if is_norm or parameter.min() == parameter.max():
            weight_of_norm = is_norm and not name.endswith("bias")
            parameter.normal_(1.0 if weight_of_norm else 0.0, 0.2)
    for name, buffer in model.named_buffers():
        # The correction of the choice of experts is learned without being a parameter.
        if name.endswith("correction_bias"):
            buffer.normal_(0.0, 0.2)
        elif name.endswith("layer_scalar"):
            buffer.normal_(1.0, 0.2)


def save(folder: Path, recipe: TinyModel, max_shard_size: str = "5GB") -> Any:
    """Write a complete model folder; returns the model."""
    model = build(recipe)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    train_tokenizer(model.config.vocab_size).save(str(folder / "tokenizer.json"))
    return model


def train_tokenizer(vocab_size: int) -> Tokenizer:
    """A real byte-level BPE tokenizer of at most `vocab_size` tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer
