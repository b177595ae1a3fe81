"""OPT: learned positions of which two rows come before the first token's; 350M, with norms behind, is another model."""

from dataclasses import replace
from typing import Any

from penstock_server.architectures.family import Family, NameMap


def _adapt(family: Family, raw: dict[str, Any]) -> Family:
    """Embeddings have the size of the hidden states: others would need projections."""
    return replace(family, fixed={**family.fixed, "word_embed_proj_dim": raw.get("hidden_size")})


OPT = Family(
    "opt",
    "OPT but 350M",
    aliases={"intermediate_size": "ffn_dim", "hidden_act": "activation_function", "num_key_value_heads": ""},
    defaults={"tie_word_embeddings": True, "hidden_act": "relu", "enable_bias": True},
    fixed={
        "do_layer_norm_before": True,
        "_remove_final_layer_norm": False,
        "layer_norm_elementwise_affine": True,
    },
    norm_centered=True,
    norm_bias=True,
    qkv_bias="enable_bias",
    output_bias="enable_bias",
    mlp_bias="enable_bias",
    rotary=False,
    position_offset=2,
    gated=False,
    names=NameMap(
        embedding="model.decoder.embed_tokens",
        positions="model.decoder.embed_positions",
        final_norm="model.decoder.final_layer_norm",
        layer="model.decoder.layers.{}.",
        attention_input_norm="self_attn_layer_norm",
        mlp_input_norm="final_layer_norm",
        output="self_attn.out_proj",
        up="fc1",
        down="fc2",
    ),
    adapt=_adapt,
)
