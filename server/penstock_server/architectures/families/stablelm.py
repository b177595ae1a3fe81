"""StableLM 2 and 3B-4E1T: Llama with layer norms and rotary embedding of a quarter of each head."""

from dataclasses import replace
from typing import Any

from penstock_server.architectures.family import Family, NameMap


def _adapt(family: Family, raw: dict[str, Any]) -> Family:
    """Where both parts read the same sum, they share the norm before them."""
    if not raw.get("use_parallel_residual"):
        return family
    return replace(family, names=replace(family.names, mlp_input_norm=""))


STABLELM = Family(
    "stablelm",
    "StableLM 3B, 2 1.6B, 2 12B",
    defaults={"partial_rotary_factor": 0.25},
    norm_centered=True,
    norm_bias=True,
    norm_eps="layer_norm_eps",
    qkv_bias="use_qkv_bias",
    qk_norm="per_head",
    qk_norm_key="qk_layernorm",
    parallel="use_parallel_residual",
    names=NameMap(query_norm="self_attn.q_layernorm.norms.{}", key_norm="self_attn.k_layernorm.norms.{}"),
    adapt=_adapt,
)
