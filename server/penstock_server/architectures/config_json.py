"""Reads config.json into a `ModelSpec`, as the row of its family says."""

from pathlib import Path
from typing import Any

from penstock_server.architectures.family import Experts, Family
from penstock_server.architectures.fields import Fields, read_json
from penstock_server.architectures.rope import read_ropes, replace_scaling
from penstock_server.architectures.spec import Activation, LayerSpec, ModelSpec, MoeSpec, NormSpec
from penstock_server.architectures.windows import read_windows
from penstock_server.base.config import RopeOverride
from penstock_server.base.errors import StartError

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_DTYPES = ("float32", "bfloat16", "float16", "float64")
_MAX_LAYERS = 4096
_MAX_EXPERTS = 4096


def build_spec(
    family: Family, raw: dict[str, Any], path: Path, rope: RopeOverride | None = None
) -> ModelSpec:
    """The spec of a model, from the row of its family and its config.json; raises StartError."""
    if family.adapt is not None:
        family = family.adapt(family, raw)
    fields = Fields(raw, path, family.aliases, family.defaults)
    _refuse_unsupported(family, fields)
    num_heads = fields.integer("num_attention_heads")
    hidden_size = fields.integer("hidden_size")
    head_dim = _head_dim(fields, hidden_size, num_heads, family.rotary)
    max_sequence_len = fields.integer("max_position_embeddings", default=2048)
    ropes = read_ropes(fields, family, head_dim, max_sequence_len)
    if rope is not None:
        ropes, max_sequence_len = replace_scaling(ropes, rope, max_sequence_len)
    scale = fields.number_fact(family.residual_multiplier)
    return ModelSpec(
        model_type=family.model_type,
        names=family.names,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(fields, num_heads),
        head_dim=head_dim,
        max_sequence_len=max_sequence_len,
        layers=_layers(fields, family),
        ropes=ropes,
        interleaved_rope=family.interleaved_rope,
        norm=NormSpec(
            family.norm_centered,
            family.norm_bias,
            fields.number(family.norm_eps, 1e-5 if family.norm_centered else 1e-6),
            family.norm_weight_offset,
        ),
        attention_scale=_attention_scale(fields, family, head_dim),
        attention_soft_cap=fields.number_fact(family.attention_soft_cap),
        sinks=family.sinks,
        qk_norm=family.qk_norm if not family.qk_norm_key or fields.fact(family.qk_norm_key) else None,
        qkv_layout=family.qkv_layout,
        qkv_bias=fields.fact(family.qkv_bias),
        output_bias=fields.fact(family.output_bias),
        activation=_activation(fields, family),
        gated=family.gated,
        mlp_bias=fields.fact(family.mlp_bias),
        transposed=family.transposed,
        moe=None if family.experts is None else _moe(fields, family.experts),
        parallel=fields.fact(family.parallel),
        embedding_scale=hidden_size**0.5
        if family.scales_embedding_by_size
        else fields.number_fact(family.embedding_scale) or 1.0,
        residual_multiplier=1.0 if scale is None else scale,
        logit_scale=(fields.number_fact(family.logit_scale) or 1.0)
        / (fields.number_fact(family.logit_divisor) or 1.0),
        logit_soft_cap=fields.number_fact(family.logit_soft_cap),
        tied_embeddings=fields.fact("tie_word_embeddings"),
        dtype=read_dtype(fields),
        eos_token_ids=read_eos_token_ids(raw, path.with_name("generation_config.json")),
    )


def _refuse_unsupported(family: Family, fields: Fields) -> None:
    if fields.raw.get("quantization_config"):
        raise StartError(f"{fields.path}: quantized weights are not supported yet; use the unquantized model")
    for key, value in family.fixed.items():
        if fields.get(key, value) != value:
            raise fields.error(key, fields.get(key), f"{value}, the only one supported")


def _num_kv_heads(fields: Fields, num_heads: int) -> int:
    num_kv_heads = fields.integer("num_key_value_heads", default=num_heads)
    if num_heads % num_kv_heads:
        names = fields.name("num_attention_heads"), fields.name("num_key_value_heads")
        raise StartError(f"{fields.path}: {names[0]} {num_heads} is no multiple of {names[1]} {num_kv_heads}")
    return num_kv_heads


def _head_dim(fields: Fields, hidden_size: int, num_heads: int, rotary: bool) -> int:
    head_dim = fields.integer("head_dim", default=max(hidden_size // num_heads, 1), high=1024)
    if rotary and head_dim % 2:
        raise StartError(f"{fields.path}: head_dim {head_dim} is odd; rotary embedding needs pairs")
    return head_dim


def _attention_scale(fields: Fields, family: Family, head_dim: int) -> float:
    scale = fields.number_fact(family.attention_scale)
    if scale is not None:
        return scale
    divisor = fields.number(family.score_divisor_key) if family.score_divisor_key else head_dim
    return float(divisor**-0.5)


def _activation(fields: Fields, family: Family) -> Activation:
    written = fields.get(family.activation, "silu")
    written = family.activation_names.get(str(written), str(written))
    if written not in _ACTIVATIONS:
        raise fields.error(family.activation, written, f"one of {', '.join(_ACTIVATIONS)}")
    return "clamped_swiglu" if family.clamped_swiglu else _ACTIVATIONS[written]


def _layers(fields: Fields, family: Family) -> tuple[LayerSpec, ...]:
    num_layers = fields.integer("num_hidden_layers", high=_MAX_LAYERS)
    windows = read_windows(fields, family.windows, num_layers)
    dense = fields.get("mlp_only_layers", [])
    if not isinstance(dense, list):
        raise fields.error("mlp_only_layers", dense, "a list of layers")
    step = fields.integer("decoder_sparse_step", default=1)
    return tuple(
        LayerSpec(
            window=window,
            rope=_rope_of(family, window),
            is_sparse=family.experts is not None and layer not in dense and (layer + 1) % step == 0,
        )
        for layer, window in enumerate(windows)
    )


def _rope_of(family: Family, window: int | None) -> int | None:
    if not family.rotary or (family.rope_only_in_windows and window is None):
        return None
    return 1 if family.local_rope is not None and window is not None else 0


def _moe(fields: Fields, experts: Experts) -> MoeSpec:
    # transformers 5 writes the second where 4 wrote the first.
    count_key = "num_experts" if fields.get("num_experts") is not None else "num_local_experts"
    num_experts = fields.integer(count_key, high=_MAX_EXPERTS)
    return MoeSpec(
        num_experts=num_experts,
        top_k=fields.integer("num_experts_per_tok", high=num_experts),
        expert_size=fields.integer(experts.size),
        normalized=fields.fact(experts.normalized),
        bias=experts.bias,
        interleaved=experts.interleaved,
        shared_size=fields.integer(experts.shared_size) if experts.shared_size else 0,
    )


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
