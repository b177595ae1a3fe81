"""config.json to `ModelSpec`: what the decoder has to know, checked. Pure Python: it runs before torch is imported."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock_server.errors import StartError

# A fact of a family: fixed, or the name of the config.json key that says it.
Fact = bool | str


@dataclass(frozen=True, slots=True)
class NameMap:
    """Where a family keeps its weights in the checkpoint. Layer names stand under `layer`, `{}` being its number."""

    embedding: str = "model.embed_tokens.weight"
    final_norm: str = "model.norm.weight"
    lm_head: str = "lm_head.weight"
    layer: str = "model.layers.{}."
    input_norm: str = "input_layernorm.weight"
    post_attention_norm: str = "post_attention_layernorm.weight"
    query: str = "self_attn.q_proj"
    key: str = "self_attn.k_proj"
    value: str = "self_attn.v_proj"
    output: str = "self_attn.o_proj"
    query_norm: str = "self_attn.q_norm.weight"
    key_norm: str = "self_attn.k_norm.weight"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"


@dataclass(frozen=True, slots=True)
class Family:
    """One row: how a model_type differs from a plain decoder."""

    model_type: str
    qkv_bias: Fact = False
    output_bias: Fact = False
    mlp_bias: Fact = False
    qk_norm: Fact = False
    has_window: bool = False
    # None: hidden_size / num_attention_heads.
    default_head_dim: int | None = None
    names: NameMap = field(default_factory=NameMap)


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding: `kind` is "default", "linear", "llama3" or "yarn"; `scaling` holds that kind's own numbers."""

    theta: float
    kind: str
    scaling: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Everything the decoder has to know about a model."""

    model_type: str
    names: NameMap
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_sequence_len: int
    norm_eps: float
    rope: RopeSpec
    # Per layer: how many positions a query sees; None is all.
    windows: tuple[int | None, ...]
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tied_embeddings: bool
    dtype: str
    eos_token_ids: tuple[int, ...]


ROPE_KINDS = ("default", "linear", "llama3", "yarn")
# Nothing real comes near; products of two still fit into 64 bits.
_MAX_SIZE = 2**26


class Fields:
    """Typed look-ups in a JSON object; what is wrong is said with the file and the key."""

    def __init__(self, raw: dict[str, Any], path: Path) -> None:
        self.raw = raw
        self.path = path

    def integer(self, key: str, default: int | None = None, high: int = _MAX_SIZE) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
            raise StartError(f"{self.path}: {key} is {value!r}; expected a whole number from 1 to {high}")
        return value

    def number(self, key: str, default: float) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
            raise StartError(f"{self.path}: {key} is {value!r}; expected a positive number")
        return float(value)

    def fact(self, fact: Fact) -> bool:
        return bool(self.raw.get(fact, False)) if isinstance(fact, str) else fact

    def _get(self, key: str, default: float | None) -> Any:
        value = self.raw.get(key)
        if value is not None:
            return value
        if default is None:
            raise StartError(f"{self.path}: {key} is missing; use a config.json as transformers writes it")
        return default


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a model folder, or a StartError that names it."""
    try:
        raw = json.loads(path.read_bytes())
    except OSError as error:
        raise StartError(
            f"{path}: {error.strerror}; --model-path needs a complete Hugging Face folder"
        ) from None
    except (ValueError, RecursionError) as error:
        raise StartError(f"{path}: not valid JSON ({error}); download the file again") from None
    if not isinstance(raw, dict):
        raise StartError(f"{path}: expected a JSON object, found {type(raw).__name__}")
    return raw


def build_spec(family: Family, raw: dict[str, Any], path: Path) -> ModelSpec:
    """A family's row and a config.json together."""
    fields = Fields(raw, path)
    _refuse_unsupported(raw, path)
    num_heads = fields.integer("num_attention_heads")
    num_layers = fields.integer("num_hidden_layers", high=4096)
    hidden_size = fields.integer("hidden_size")
    return ModelSpec(
        model_type=family.model_type,
        names=family.names,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(fields, num_heads),
        head_dim=_head_dim(fields, family, hidden_size, num_heads),
        max_sequence_len=fields.integer("max_position_embeddings", default=2048),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=_rope(fields),
        windows=_windows(fields, num_layers) if family.has_window else (None,) * num_layers,
        qkv_bias=fields.fact(family.qkv_bias),
        output_bias=fields.fact(family.output_bias),
        mlp_bias=fields.fact(family.mlp_bias),
        qk_norm=fields.fact(family.qk_norm),
        tied_embeddings=fields.fact("tie_word_embeddings"),
        dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32"),
        eos_token_ids=_eos_token_ids(raw, path.with_name("generation_config.json")),
    )


def _refuse_unsupported(raw: dict[str, Any], path: Path) -> None:
    activation = raw.get("hidden_act", "silu")
    if activation != "silu":
        raise StartError(f"{path}: hidden_act {activation!r} is not supported; supported: silu")
    if raw.get("quantization_config"):
        raise StartError(f"{path}: quantized weights are not supported yet; use the unquantized model")


def _num_kv_heads(fields: Fields, num_heads: int) -> int:
    num_kv_heads = fields.integer("num_key_value_heads", default=num_heads)
    if num_heads % num_kv_heads:
        raise StartError(
            f"{fields.path}: num_attention_heads {num_heads} is no multiple of num_key_value_heads {num_kv_heads}"
        )
    return num_kv_heads


def _head_dim(fields: Fields, family: Family, hidden_size: int, num_heads: int) -> int:
    head_dim = fields.integer(
        "head_dim", default=family.default_head_dim or max(hidden_size // num_heads, 1), high=1024
    )
    if head_dim % 2:
        raise StartError(f"{fields.path}: head_dim {head_dim} is odd; rotary embedding needs pairs")
    return head_dim


def _rope(fields: Fields) -> RopeSpec:
    scaling = fields.raw.get("rope_parameters") or fields.raw.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise StartError(f"{fields.path}: rope_scaling is {scaling!r}; expected an object")
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in ROPE_KINDS:
        raise StartError(
            f"{fields.path}: rope type {kind!r} is not supported; supported: {', '.join(ROPE_KINDS)}"
        )
    theta = fields.number("rope_theta", 10000.0)
    theta = Fields(scaling, fields.path).number("rope_theta", theta)
    if kind != "default":
        Fields(scaling, fields.path).number("factor", 0.0)
    return RopeSpec(theta, kind, scaling)


def _windows(fields: Fields, num_layers: int) -> tuple[int | None, ...]:
    raw = fields.raw
    if not raw.get("use_sliding_window") or raw.get("sliding_window") is None:
        return (None,) * num_layers
    window = fields.integer("sliding_window")
    types = raw.get("layer_types")
    if types is None:
        first = raw.get("max_window_layers", num_layers)
        types = ["full_attention" if layer < first else "sliding_attention" for layer in range(num_layers)]
    if not isinstance(types, list) or len(types) != num_layers:
        raise StartError(f"{fields.path}: layer_types does not name each of the {num_layers} layers")
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def _eos_token_ids(raw: dict[str, Any], generation_config: Path) -> tuple[int, ...]:
    found = None
    if generation_config.exists():
        found = read_json(generation_config).get("eos_token_id")
    if found is None:
        found = raw.get("eos_token_id")
    ids = found if isinstance(found, list) else [found]
    return tuple(token for token in ids if isinstance(token, int) and 0 <= token < 2**32)
