"""Falcon: one key head for all queries in 7B, groups of queries and two parallel norms in 40B, ALiBi in RW."""

from dataclasses import replace
from typing import Any

from penstock_server.architectures.family import Family, NameMap

_NAMES = NameMap(
    embedding="transformer.word_embeddings",
    final_norm="transformer.ln_f",
    layer="transformer.h.{}.",
    qkv="self_attention.query_key_value",
    output="self_attention.dense",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
)


def _adapt(family: Family, raw: dict[str, Any]) -> Family:
    is_new = bool(raw.get("new_decoder_architecture"))
    is_parallel = is_new or raw.get("parallel_attn") is not False
    names = family.names
    if is_new and raw.get("num_ln_in_parallel_attn") in (None, 2):
        names = replace(names, attention_input_norm="ln_attn", mlp_input_norm="ln_mlp")
    elif is_parallel:
        names = replace(names, mlp_input_norm="")
    # The older ones write a number of key heads that nothing reads.
    shares_key = not is_new and raw.get("multi_query") is not False
    kv_heads = {"num_key_value_heads": "num_kv_heads" if is_new else ""}
    return replace(
        family,
        aliases={**family.aliases, **kv_heads},
        defaults={**family.defaults, **({"num_key_value_heads": 1} if shares_key else {})},
        parallel=is_parallel,
        names=names,
        rotary=raw.get("alibi") is not True,
        alibi=raw.get("alibi") is True,
    )


FALCON = Family(
    "falcon",
    "Falcon 7B, 40B, 180B, RW",
    aliases={"intermediate_size": "ffn_hidden_size", "hidden_act": "activation"},
    defaults={"tie_word_embeddings": True, "hidden_act": "gelu"},
    scales_alibi=True,
    norm_centered=True,
    norm_bias=True,
    norm_eps="layer_norm_epsilon",
    qkv_bias="bias",
    output_bias="bias",
    mlp_bias="bias",
    qkv_layout="grouped",
    gated=False,
    parallel="parallel_attn",
    names=_NAMES,
    adapt=_adapt,
)
