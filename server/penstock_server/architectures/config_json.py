"""Reads config.json into a `ModelSpec`, as the row of its family says."""

import math
from pathlib import Path
from typing import Any, NamedTuple

from penstock_server.architectures.experts import read_moe, read_sparse_layers
from penstock_server.architectures.family import Family, QkNorm, WrongValue
from penstock_server.architectures.fields import Fields, read_json
from penstock_server.architectures.kv_layers import check_heads, read_index_sources, read_kv_layers
from penstock_server.architectures.recurrent import read_parts, read_recurrent
from penstock_server.architectures.rope import read_ropes, read_thetas, replace_scaling
from penstock_server.architectures.spec import (
    Activation,
    Factors,
    IndexSpec,
    KvHeads,
    LatentSpec,
    LayerInputs,
    LayerSpec,
    ModelSpec,
    NormSpec,
    RopeSpec,
    TemperatureSpec,
)
from penstock_server.architectures.windows import read_chunks, read_rotating_layers, read_windows
from penstock_server.base.config import RopeOverride
from penstock_server.base.errors import StartError

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "xielu": "xielu",
}
# The activations that a gated layer may have; the others stand alone between two projections.
_GATING = ("silu", "gelu", "gelu_tanh")
_DTYPES = ("float32", "bfloat16", "float16", "float64")
_MAX_LAYERS = 4096


def build_spec(
    family: Family, raw: dict[str, Any], path: Path, rope: RopeOverride | None = None
) -> ModelSpec:
    """The spec of a model, from the row of its family and its config.json; raises StartError."""
    family, fields = _fitted(family, raw, path)
    heads = _heads(fields, family)
    layers = _layers(fields, family, KvHeads(heads.num_kv, heads.dim))
    ropes, max_sequence_len = _ropes(fields, family, heads, layers, rope)
    attention_scale = _attention_scale(fields, family, heads.dim) * _amplitude(heads.latent, ropes)
    return ModelSpec(
        model_type=family.model_type,
        names=family.names,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        num_heads=heads.number,
        num_kv_heads=heads.num_kv,
        head_dim=heads.dim,
        max_sequence_len=max_sequence_len,
        position_offset=family.position_offset,
        layers=layers,
        ropes=ropes,
        interleaved_rope=fields.fact(family.interleaved_rope),
        backward_rope=family.backward_rope,
        norm=_norm(fields, family),
        attention_scale=attention_scale,
        attention_soft_cap=fields.number_fact(family.attention_soft_cap),
        sinks=family.sinks,
        slopes=_slopes(fields, family, heads.number, attention_scale),
        temperature=_temperature(fields, family),
        latent=heads.latent,
        recurrent=read_recurrent(fields, family),
        gated_attention=family.gated_attention,
        factors=_factors(fields) if family.has_factors else Factors(),
        qk_norm=_qk_norm(fields, family, ropes),
        qk_norm_bias=family.qk_norm_bias,
        qk_norm_after_rope=family.qk_norm_after_rope,
        value_norm=family.value_norm,
        qkv_layout=family.qkv_layout,
        qkv_limit=fields.number_fact(family.qkv_limit),
        qkv_bias=fields.fact(family.qkv_bias),
        output_bias=fields.fact(family.output_bias),
        activation=_activation(fields, family),
        gated=family.gated,
        mlp_bias=fields.fact(family.mlp_bias),
        transposed=family.transposed,
        moe=read_moe(fields, family.experts),
        parallel=fields.fact(family.parallel),
        layer_inputs=_layer_inputs(fields, family),
        scales_layers=family.scales_layers,
        embedding_scale=_embedding_scale(fields, family),
        residual_multiplier=_residual_multiplier(fields, family),
        logit_scale=_logit_scale(fields, family),
        logit_soft_cap=fields.number_fact(family.logit_soft_cap),
        head_bias=fields.fact(family.head_bias),
        unit_head=family.unit_head,
        tied_embeddings=fields.fact("tie_word_embeddings"),
        dtype=read_dtype(fields),
        eos_token_ids=read_eos_token_ids(raw, path.with_name("generation_config.json")),
    )


def _fitted(family: Family, raw: dict[str, Any], path: Path) -> tuple[Family, Fields]:
    """The row as it fits this config.json, and what that says."""
    try:
        family = family if family.adapt is None else family.adapt(family, raw)
    except WrongValue as error:
        raise Fields(raw, path).error(error.key, error.value, error.expected) from None
    fields = Fields(raw, path, family.aliases, family.defaults)
    for key, value in family.fixed.items():
        if fields.get(key, value) != value:
            raise fields.error(key, fields.get(key), f"{value}, the only one supported")
    return family, fields


class _Heads(NamedTuple):
    """The heads that have queries."""

    number: int
    num_kv: int
    dim: int
    # Where keys and values are made of latents.
    latent: LatentSpec | None


def _heads(fields: Fields, family: Family) -> _Heads:
    count, hidden_size = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    if family.latent:
        latent = _latent(fields, family, hidden_size // count)
        return _Heads(count, count, latent.nope_dim + latent.rope_dim, latent)
    return _Heads(count, _num_kv_heads(fields, count), _head_dim(fields, hidden_size, count, family), None)


def _ropes(
    fields: Fields, family: Family, heads: _Heads, layers: tuple[LayerSpec, ...], rope: RopeOverride | None
) -> tuple[tuple[RopeSpec, ...], int]:
    """The rotary embeddings, and the longest sequence that they serve."""
    longest = fields.integer("max_position_embeddings", default=2048)
    rotated = heads.latent.rope_dim if heads.latent else heads.dim
    full = next((layer.kv_heads.dim for layer in layers if layer.kv_heads and layer.window is None), rotated)
    ropes = read_ropes(fields, family, (full, rotated), longest)
    if rope is None:
        return ropes, longest
    return replace_scaling(ropes, rope, longest, bool(family.thetas_key))


def _qk_norm(fields: Fields, family: Family, ropes: tuple[RopeSpec, ...]) -> QkNorm | None:
    if family.qk_norm_key and not fields.fact(family.qk_norm_key):
        return None
    if family.qk_norm == "unit" and any(rope.kind in ("yarn", "longrope") for rope in ropes):
        raise fields.error("rope_scaling", ropes[0].kind, "a kind that keeps the size of queries")
    return family.qk_norm


def _temperature(fields: Fields, family: Family) -> TemperatureSpec | None:
    keys = family.temperature
    if keys is None:
        return None
    if keys.in_rope:
        rope = fields.get("rope_parameters") or fields.get("rope_scaling")
        fields = Fields(rope if isinstance(rope, dict) else {}, fields.path)
    is_used = fields.get(keys.strength) is not None if keys.in_rope else fields.fact(keys.switch)
    if not is_used:
        return None
    return TemperatureSpec(fields.number(keys.interval), fields.number(keys.strength), keys.in_rope)


def _norm(fields: Fields, family: Family) -> NormSpec:
    usual_eps = 1e-5 if family.norm_centered else 1e-6
    eps = fields.number(family.norm_eps, usual_eps)
    return NormSpec(
        family.norm_centered, family.norm_bias, eps, family.norm_weight_offset, family.norm_weights
    )


def _embedding_scale(fields: Fields, family: Family) -> float:
    if fields.fact(family.scales_embedding_by_size):
        return float(fields.integer("hidden_size") ** 0.5)
    return fields.number_fact(family.embedding_scale) or 1.0


def _residual_multiplier(fields: Fields, family: Family) -> float:
    written = fields.number_fact(family.residual_multiplier)
    return 1.0 if written is None else written


def _logit_scale(fields: Fields, family: Family) -> float:
    scale, divisor = fields.number_fact(family.logit_scale), fields.number_fact(family.logit_divisor)
    return (scale or 1.0) / (divisor or 1.0)


def _num_kv_heads(fields: Fields, num_heads: int) -> int:
    num_kv_heads = fields.integer("num_key_value_heads", default=num_heads)
    if num_heads % num_kv_heads:
        names = fields.name("num_attention_heads"), fields.name("num_key_value_heads")
        raise StartError(f"{fields.path}: {names[0]} {num_heads} is no multiple of {names[1]} {num_kv_heads}")
    return num_kv_heads


def _latent(fields: Fields, family: Family, head_size: int) -> LatentSpec:
    """`head_size`: the hidden size by the number of heads."""
    has_query_rank = fields.get("q_lora_rank") is not None
    rope_dim = fields.integer("qk_rope_head_dim", high=1024)
    if rope_dim % 2:
        raise fields.error("qk_rope_head_dim", rope_dim, "an even number")
    return LatentSpec(
        query_rank=fields.integer("q_lora_rank") if has_query_rank else None,
        rank=fields.integer("kv_lora_rank"),
        nope_dim=fields.integer("qk_nope_head_dim", high=1024),
        rope_dim=rope_dim,
        value_dim=fields.integer("v_head_dim", default=head_size, high=1024),
        index=_index(fields, family, rope_dim) if family.indexed else None,
    )


def _index(fields: Fields, family: Family, rope_dim: int) -> IndexSpec:
    if fields.get("q_lora_rank") is None:
        raise fields.error("q_lora_rank", None, "a whole number: the index makes its queries of that vector")
    return IndexSpec(
        fields.integer("index_n_heads"),
        fields.integer("index_head_dim", low=rope_dim, high=1024),
        fields.integer("index_topk"),
        family.interleaved_index,
    )


def _slopes(
    fields: Fields, family: Family, num_heads: int, attention_scale: float
) -> tuple[float, ...] | None:
    """A geometric series; beyond the largest power of two of heads, every second number of one twice as dense."""
    if not family.alibi:
        return None
    steepest = fields.number("alibi_bias_max", 8.0)
    factor = attention_scale if family.scales_alibi else 1.0
    base = 1 << (num_heads.bit_length() - 1)
    exponents = [steepest * (head + 1) / base for head in range(base)]
    exponents += [steepest * (2 * head + 1) / (2 * base) for head in range(num_heads - base)]
    return tuple(factor * 2.0**-exponent for exponent in exponents)


def _amplitude(latent: LatentSpec | None, ropes: tuple[RopeSpec, ...]) -> float:
    """The factor of scores over latents where positions are stretched."""
    stretched = latent and ropes and ropes[0].kind != "default"
    weight = ropes[0].scaling.get("mscale_all_dim") if stretched else None
    if not weight or ropes[0].scaling["factor"] <= 1:
        return 1.0
    return float(0.1 * weight * math.log(ropes[0].scaling["factor"]) + 1.0) ** 2


def _head_dim(fields: Fields, hidden_size: int, num_heads: int, family: Family) -> int:
    head_dim = fields.integer("head_dim", default=max(hidden_size // num_heads, 1), high=1024)
    if family.rotary and head_dim % 2:
        raise StartError(f"{fields.path}: head_dim {head_dim} is odd; rotary embedding needs pairs")
    return head_dim


def _attention_scale(fields: Fields, family: Family, head_dim: int) -> float:
    scale = fields.number_fact(family.attention_scale)
    if scale is not None:
        return scale
    divisor = fields.number(family.score_divisor_key) if family.score_divisor_key else head_dim
    return float(divisor**-0.5)


def _factors(fields: Fields) -> Factors:
    attention = [fields.number(key, 1.0) for key in ("attention_in_multiplier", "attention_out_multiplier")]
    written = fields.get("mlp_multipliers")
    gate, out = (1.0, 1.0) if written is None else fields.numbers("mlp_multipliers", 2)
    return Factors(attention[0], attention[1], gate, out)


def _activation(fields: Fields, family: Family) -> Activation:
    written = fields.get(family.activation, "silu")
    written = family.activation_names.get(str(written), str(written))
    if written not in _ACTIVATIONS:
        raise fields.error(family.activation, written, f"one of {', '.join(_ACTIVATIONS)}")
    if family.gated and _ACTIVATIONS[written] not in _GATING:
        raise fields.error(family.activation, written, "an activation of a gated layer")
    return "clamped_swiglu" if family.clamped_swiglu else _ACTIVATIONS[written]


def _layer_inputs(fields: Fields, family: Family) -> LayerInputs | None:
    if family.layer_inputs is None:
        return None
    size = fields.integer(family.layer_inputs[0], default=0, low=0)
    return LayerInputs(size, fields.integer(family.layer_inputs[1])) if size else None


def _layers(fields: Fields, family: Family, usual: KvHeads) -> tuple[LayerSpec, ...]:
    num_layers = fields.integer("num_hidden_layers", high=_MAX_LAYERS)
    windows = read_windows(fields, family.windows, num_layers)
    rotates = read_rotating_layers(fields, family.rotating_layers, num_layers)
    parts = read_parts(fields, family.recurrent, num_layers)
    chunks = read_chunks(fields, family.chunk_key, rotates)
    sparse = read_sparse_layers(fields, family.experts, parts)
    kv_layers = read_kv_layers(fields, family, usual, windows)
    check_heads(fields, fields.integer("num_attention_heads"), kv_layers)
    thetas = read_thetas(fields, family)

    def rope_of(layer: int) -> int | None:
        return _rope_of(family, windows[layer]) if thetas is None else thetas.of_layers[layer]

    index_sources = read_index_sources(fields, num_layers) if family.indexed else (None,) * num_layers
    wide = 2 * fields.integer("intermediate_size") if _has_wide_readers(fields, family) else None

    return tuple(
        LayerSpec(
            window=window,
            rope=rope_of(layer) if rotates[layer] and parts[layer].attention else None,
            is_sparse=sparse[layer],
            has_attention=parts[layer].attention,
            is_recurrent=parts[layer].recurrent,
            has_feed_forward=parts[layer].feed_forward,
            chunk=chunks[layer],
            kv_heads=kv_layers[layer].heads,
            kv_source=kv_layers[layer].source,
            values_are_keys=kv_layers[layer].values_are_keys,
            index_source=index_sources[layer],
            intermediate_size=None if kv_layers[layer].source is None else wide,
        )
        for layer, window in enumerate(windows)
    )


def _has_wide_readers(fields: Fields, family: Family) -> bool:
    return family.kv_readers is not None and fields.fact(family.kv_readers[1])


def _rope_of(family: Family, window: int | None) -> int | None:
    if not family.rotary or (family.rope_only_in_windows and window is None):
        return None
    return 1 if family.local_rope is not None and window is not None else 0


def read_dtype(fields: Fields) -> str:
    """The type of the weights, under either key that transformers has used."""
    key = "dtype" if fields.get("dtype") is not None else "torch_dtype"
    written = fields.get(key, "float32")
    name = str(written).removeprefix("torch.")
    if name not in _DTYPES:
        raise fields.error(key, written, f"one of {', '.join(_DTYPES)}")
    return name


def read_eos_token_ids(raw: dict[str, Any], generation_config: Path) -> tuple[int, ...]:
    """The tokens that end a sequence: generation_config.json's, else config.json's."""
    found = None
    if generation_config.exists():
        found = read_json(generation_config).get("eos_token_id")
    if found is None:
        found = raw.get("eos_token_id")
    ids = found if isinstance(found, list) else [found]
    return tuple(token for token in ids if isinstance(token, int) and 0 <= token < 2**32)
