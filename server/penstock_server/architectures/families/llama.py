"""Llama 2 and 3, and those that are Llama under other names."""

from dataclasses import replace
from typing import Any

from penstock_server.architectures.family import Family, NameMap


def _with_own_names(family: Family, raw: dict[str, Any]) -> Family:
    """InternLM 3 as its makers write it; transformers writes it as Llama."""
    if "qkv_bias" not in raw:
        return family
    return replace(family, aliases={"attention_bias": "qkv_bias", "mlp_bias": "bias"})


LLAMA = Family(
    "llama",
    "Llama 2, 3.x",
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    mlp_bias="mlp_bias",
)
INTERNLM2 = Family(
    "internlm2",
    "InternLM 2, 2.5",
    qkv_bias="bias",
    output_bias="bias",
    qkv_layout="grouped",
    names=NameMap(
        embedding="model.tok_embeddings",
        lm_head="output",
        attention_input_norm="attention_norm",
        mlp_input_norm="ffn_norm",
        qkv="attention.wqkv",
        output="attention.wo",
        gate="feed_forward.w1",
        up="feed_forward.w3",
        down="feed_forward.w2",
    ),
)
# Its models with experts have the same model_type.
XVERSE = replace(LLAMA, model_type="xverse", title="XVERSE 7B, 13B, 65B", fixed={"num_experts": None})
INTERNLM3 = replace(LLAMA, model_type="internlm3", title="InternLM 3", adapt=_with_own_names)
