"""GPT-2, GPT-Neo and StarCoder 1, GPT-J and CodeGen, and GPT-NeoX with Pythia and RedPajama."""

from dataclasses import replace
from typing import Any

from penstock_server.architectures.family import Family, NameMap, Windows


def _without_own_size(family: Family, raw: dict[str, Any]) -> Family:
    """GPT-2's feed-forward is four times as wide where config.json does not say."""
    size = raw.get("n_embd")
    defaults = {"intermediate_size": 4 * size} if isinstance(size, int) else {}
    return replace(family, defaults={**family.defaults, **defaults})


GPT2 = Family(
    "gpt2",
    "GPT-2",
    aliases={
        "hidden_size": "n_embd",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
        "max_position_embeddings": "n_positions",
        "intermediate_size": "n_inner",
        "hidden_act": "activation_function",
        # It has a key head for each query head, whatever else is written.
        "num_key_value_heads": "",
    },
    defaults={"tie_word_embeddings": True, "hidden_act": "gelu_new", "max_position_embeddings": 1024},
    fixed={
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "scale_attn_weights": True,
    },
    norm_centered=True,
    norm_bias=True,
    norm_eps="layer_norm_epsilon",
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
    rotary=False,
    gated=False,
    transposed=True,
    names=NameMap(
        embedding="transformer.wte",
        positions="transformer.wpe",
        final_norm="transformer.ln_f",
        layer="transformer.h.{}.",
        attention_input_norm="ln_1",
        mlp_input_norm="ln_2",
        qkv="attn.c_attn",
        output="attn.c_proj",
        up="mlp.c_fc",
        down="mlp.c_proj",
    ),
    adapt=_without_own_size,
)


_KINDS_OF_NEO = {"global": "full_attention", "local": "sliding_attention"}
_MANY_LAYERS = 10**4


def _with_kinds(family: Family, raw: dict[str, Any]) -> Family:
    """Kinds of layers come with a number each, how often they repeat."""
    size, kinds = raw.get("hidden_size"), []
    for item in raw.get("attention_types") or [[["global", "local"], 12]]:
        match item:
            case [list(names), int(count)] if count * len(names) < _MANY_LAYERS:
                kinds += [_KINDS_OF_NEO.get(str(name), str(name)) for name in names] * count
    defaults = {**family.defaults, "layer_types": kinds}
    if isinstance(size, int):
        defaults["intermediate_size"] = 4 * size
    return replace(family, defaults=defaults)


GPT_NEO = replace(
    GPT2,
    model_type="gpt_neo",
    title="GPT-Neo",
    aliases={
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
        "hidden_act": "activation_function",
        "sliding_window": "window_size",
        "layer_types": "",
        "num_key_value_heads": "",
    },
    defaults={**GPT2.defaults, "max_position_embeddings": 2048, "sliding_window": 256},
    fixed={},
    qkv_bias=False,
    transposed=False,
    # Scores are not divided.
    attention_scale=1.0,
    windows=Windows(),
    names=replace(
        GPT2.names,
        qkv="",
        query="attn.attention.q_proj",
        key="attn.attention.k_proj",
        value="attn.attention.v_proj",
        output="attn.attention.out_proj",
    ),
    adapt=_with_kinds,
)


def _with_key_heads(family: Family, raw: dict[str, Any]) -> Family:
    """StarCoder 1 has one key head for all queries; without that, a fused projection by heads."""
    family = _without_own_size(family, raw)
    if raw.get("multi_query") is False:
        return replace(family, qkv_layout="grouped")
    return replace(family, defaults={**family.defaults, "num_key_value_heads": 1})


GPT_BIGCODE = replace(
    GPT2,
    model_type="gpt_bigcode",
    title="StarCoder 1, SantaCoder",
    defaults={**GPT2.defaults, "hidden_act": "gelu_pytorch_tanh"},
    fixed={"add_cross_attention": False, "scale_attn_weights": True},
    transposed=False,
    adapt=_with_key_heads,
)
GPTJ = replace(
    GPT2,
    model_type="gptj",
    title="GPT-J",
    defaults={"hidden_act": "gelu_new", "max_position_embeddings": 2048},
    fixed={},
    qkv_bias=False,
    output_bias=False,
    rotary=True,
    interleaved_rope=True,
    rotary_dim_key="rotary_dim",
    transposed=False,
    parallel=True,
    head_bias=True,
    names=NameMap(
        embedding="transformer.wte",
        final_norm="transformer.ln_f",
        layer="transformer.h.{}.",
        attention_input_norm="ln_1",
        mlp_input_norm="",
        query="attn.q_proj",
        key="attn.k_proj",
        value="attn.v_proj",
        output="attn.out_proj",
        up="mlp.fc_in",
        down="mlp.fc_out",
    ),
)
CODEGEN = replace(
    GPTJ,
    model_type="codegen",
    title="CodeGen",
    qkv_layout="quartered",
    names=replace(GPTJ.names, qkv="attn.qkv_proj"),
)
GPT_NEOX = Family(
    "gpt_neox",
    "GPT-NeoX, Pythia, RedPajama",
    aliases={
        "rope_theta": "rotary_emb_base",
        "partial_rotary_factor": "rotary_pct",
        "num_key_value_heads": "",
    },
    defaults={
        "partial_rotary_factor": 0.25,
        "attention_bias": True,
        "use_parallel_residual": True,
        "hidden_act": "gelu",
    },
    norm_centered=True,
    norm_bias=True,
    norm_eps="layer_norm_eps",
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    mlp_bias=True,
    qkv_layout="grouped",
    gated=False,
    parallel="use_parallel_residual",
    names=NameMap(
        embedding="gpt_neox.embed_in",
        final_norm="gpt_neox.final_layer_norm",
        lm_head="embed_out",
        layer="gpt_neox.layers.{}.",
        qkv="attention.query_key_value",
        output="attention.dense",
        up="mlp.dense_h_to_4h",
        down="mlp.dense_4h_to_h",
    ),
)
