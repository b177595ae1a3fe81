"""Baichuan 1 and 2: Llama with one tensor for queries, keys and values; the larger models have ALiBi."""

from dataclasses import replace
from typing import Any

from penstock_server.architectures.family import Family, NameMap

# The vocabulary of the second generation; that of the first has 64,000 tokens.
_SECOND_VOCABULARY = 125_696


def _with_generation(family: Family, raw: dict[str, Any]) -> Family:
    """One model_type stands for two kinds of positions and two kinds of heads."""
    # No key says how positions are told. The rotary models (7B) are written with `max_position_embeddings`, those with
    # ALiBi (13B) with `model_max_length` alone: the length of a slope has no bound.
    if raw.get("max_position_embeddings") is None:
        aliases = {**family.aliases, "max_position_embeddings": "model_max_length"}
        family = replace(family, aliases=aliases, rotary=False, alibi=True)
    size = raw.get("vocab_size")
    # The second generation compares directions: its head, which is a matrix of its own, has rows of length 1.
    if isinstance(size, int) and size >= _SECOND_VOCABULARY:
        family = replace(family, unit_head=True, fixed={**family.fixed, "tie_word_embeddings": False})
    return family


BAICHUAN = Family(
    "baichuan",
    "Baichuan 1, 2: 7B, and 13B with ALiBi",
    # All heads have keys of their own, and their size is no key.
    aliases={"num_key_value_heads": "", "head_dim": ""},
    names=NameMap(qkv="self_attn.W_pack"),
    adapt=_with_generation,
)
