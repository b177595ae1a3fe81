"""From the metadata of a GGUF file to what config.json of the same model has."""

from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock_server.architectures.fields import Fields
from penstock_server.base.errors import StartError
from penstock_server.files.gguf.architectures import ARCHITECTURES, NAMES, Architecture
from penstock_server.files.gguf.header import TensorInfo
from penstock_server.files.gguf.parts import Parts

# Keys of every architecture; further ones are those of its row, and of scalings.
_USUAL = (
    "context_length", "embedding_length", "block_count", "feed_forward_length", "vocab_size",
    "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length",
    "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon", "attention.causal",
    "rope.dimension_count", "rope.freq_base", "tensor_data_layout",
)  # fmt: skip
_SCALING = (
    "rope.scale_linear", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length",
    "rope.scaling.attn_factor", "rope.scaling.finetuned", "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow", "rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor",
)  # fmt: skip
_FREQUENCIES = "rope_freqs.weight"
_FACTORS = {"short_factor": "rope_factors_short.weight", "long_factor": "rope_factors_long.weight"}
# Tensors whose numbers are part of config.json.
IN_CONFIG = (_FREQUENCIES, *_FACTORS.values())
# The type to compute in, by the type of most of the weights; weights of few bits are made of 16.
_DTYPES = {"F32": "float32", "F16": "float16"}
_PLAIN = ("F32", "F16", "BF16")


class Described:
    """A model's metadata under keys without the name of its architecture, and the row of that."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        name = parts.metadata.get("general.architecture")
        if name not in NAMES:
            raise Fields(parts.metadata, parts.first).error(
                "general.architecture", name, f"one of {', '.join(NAMES)}"
            )
        start = f"{name}."
        found = {
            key.removeprefix(start): value for key, value in parts.metadata.items() if key.startswith(start)
        }
        self.row = _row(str(name), found)
        aliases = {key: f"{start}{key}" for key in (*_USUAL, *_SCALING, *self.row.keys, *found)}
        self.fields = Fields(parts.metadata, parts.first, aliases)
        self.num_layers = self.integer("block_count", high=4096)
        self.num_heads = self._uniform("attention.head_count")
        self.num_kv_heads = self._uniform("attention.head_count_kv", self.num_heads)
        self._refuse_unknown(found)
        self._found = found

    def integer(self, key: str, default: int | None = None, high: int = 1 << 26) -> int:
        """A whole number from 1 on."""
        if default is None and self.fields.get(key) is None:
            raise StartError(f"{self.parts.first}: {self.fields.name(key)} is missing; use another file")
        return self.fields.integer(key, default, high=high)

    def config(self) -> dict[str, Any]:
        """The contents of config.json."""
        hidden_size = self.integer("embedding_length")
        head_dim = self.integer("attention.key_length", max(hidden_size // self.num_heads, 1), 1024)
        if self.integer("attention.value_length", head_dim) != head_dim:
            raise self.fields.error(
                "attention.value_length", self.fields.get("attention.value_length"), f"{head_dim}, as of keys"
            )
        return {
            "model_type": self.row.model_type,
            "vocab_size": self._vocab_size(),
            "hidden_size": hidden_size,
            "intermediate_size": self._uniform("feed_forward_length"),
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": head_dim,
            "max_position_embeddings": self.integer("context_length"),
            "tie_word_embeddings": "output.weight" not in self.parts.tensors,
            "attention_bias": "blk.0.attn_q.bias" in self.parts.tensors,
            "dtype": self._dtype(),
            **self._norm(),
            **self._rope(head_dim),
            **self._own(),
            **self.row.config,
            **({} if self.row.derive is None else self.row.derive(self._found)),
            **({"quantization_config": {"quant_method": "gguf"}} if self._is_quantized() else {}),
        }

    def _refuse_unknown(self, found: dict[str, Any]) -> None:
        known = {*_USUAL, *_SCALING, *self.row.keys}
        for key, value in found.items():
            if key not in known and value not in (0, "", []):
                raise self.fields.error(key, value, "none: this key is not known here")
        if self.fields.get("attention.causal", True) is not True:
            raise self.fields.error("attention.causal", False, "true")
        layout = "tensor_data_layout"
        if self.row.permuted and self.fields.get(layout, "Meta AI original pth") != "Meta AI original pth":
            raise self.fields.error(layout, self.fields.get(layout), "Meta AI original pth")

    def _uniform(self, key: str, default: int | None = None) -> int:
        """A number that some files have for each layer."""
        value = self.fields.get(key)
        if not isinstance(value, list):
            return self.integer(key, default)
        if len(value) != self.num_layers or len(set(value)) != 1:
            raise self.fields.error(key, value, "the same number for all layers")
        return Fields({self.fields.name(key): value[0]}, self.parts.first).integer(self.fields.name(key))

    def _vocab_size(self) -> int:
        embedding = self.parts.tensors.get("token_embd.weight")
        if embedding is None:
            raise StartError(f"{self.parts.first}: tensor token_embd.weight is missing; download it again")
        return embedding.shape[0]

    def _norm(self) -> dict[str, Any]:
        key = "attention.layer_norm_rms_epsilon"
        return {"rms_norm_eps": self.fields.number(key)} if self.fields.get(key) is not None else {}

    def _own(self) -> dict[str, Any]:
        given = ((name, self.fields.get(key)) for key, name in self.row.keys.items() if name)
        return {name: value for name, value in given if value is not None}

    def _rope(self, head_dim: int) -> dict[str, Any]:
        rotary_dim = self.integer("rope.dimension_count", head_dim)
        if rotary_dim > head_dim or (self.row.permuted and rotary_dim != head_dim):
            raise self.fields.error("rope.dimension_count", rotary_dim, f"{head_dim}, the size of a head")
        share = {} if rotary_dim == head_dim else {"partial_rotary_factor": rotary_dim / head_dim}
        theta = self.fields.number("rope.freq_base", 10000.0)
        scaling = {"rope_type": "default", **self._scaling(rotary_dim), **share}
        return {"rope_theta": theta, "rope_parameters": {**scaling, "rope_theta": theta}}

    def _scaling(self, rotary_dim: int) -> dict[str, Any]:
        factors = self._factors(rotary_dim)
        if factors:
            return factors
        kind = self.fields.get("rope.scaling.type", "none")
        if kind == "none":
            kind = "linear" if self.fields.get("rope.scale_linear") not in (None, 1.0) else kind
        make = _SCALINGS.get(str(kind))
        if make is None:
            raise self.fields.error("rope.scaling.type", kind, f"one of {', '.join(_SCALINGS)}")
        return make(self.fields)

    def _factors(self, rotary_dim: int) -> dict[str, Any]:
        """Every frequency is divided by a number of its own, which a tensor has."""
        if _FREQUENCIES in self.parts.tensors:
            # Llama 3.1 does it so: the same numbers for long sequences, and nothing is multiplied.
            numbers = self._numbers(_FREQUENCIES, rotary_dim // 2)
            names = ("short_factor", "long_factor")
            return {"rope_type": "longrope", **dict.fromkeys(names, numbers), "attention_factor": 1.0}
        if not all(name in self.parts.tensors for name in _FACTORS.values()):
            return {}
        original = self.integer("rope.scaling.original_context_length")
        return {
            "rope_type": "longrope",
            **{key: self._numbers(name, rotary_dim // 2) for key, name in _FACTORS.items()},
            "original_max_position_embeddings": original,
            "attention_factor": self.fields.number("rope.scaling.attn_factor", 1.0),
        }

    def _numbers(self, name: str, count: int) -> list[float]:
        info, path = self.parts.tensors[name], self.parts.files[name]
        if info.type.name != "F32" or info.shape != (count,):
            raise StartError(
                f"{path}: tensor {name} of the type {info.type.name} has the shape {list(info.shape)}; "
                f"expected {count} numbers of the type F32"
            )
        return _read_floats(path, info)

    def _is_quantized(self) -> bool:
        return any(info.type.name not in _PLAIN for info in self.parts.tensors.values())

    def _dtype(self) -> str:
        sizes: dict[str, int] = {}
        for info in self.parts.tensors.values():
            sizes[info.type.name] = sizes.get(info.type.name, 0) + info.end - info.begin
        return _DTYPES.get(max(sizes, key=lambda name: sizes[name]), "bfloat16")


def _row(name: str, found: dict[str, Any]) -> Architecture:
    row = ARCHITECTURES[name]
    return ARCHITECTURES[row.with_experts] if row.with_experts and found.get("expert_count") else row


def _read_floats(path: Path, info: TensorInfo) -> list[float]:
    numbers = array("f")
    with path.open("rb") as stream:
        stream.seek(info.begin)
        numbers.frombytes(stream.read(info.end - info.begin))
    return numbers.tolist()


def _linear(fields: Fields) -> dict[str, Any]:
    factor = fields.number("rope.scaling.factor", fields.get("rope.scale_linear"))
    return {"rope_type": "linear", "factor": factor}


def _yarn(fields: Fields) -> dict[str, Any]:
    keys = {
        "factor": "rope.scaling.factor",
        "original_max_position_embeddings": "rope.scaling.original_context_length",
        "beta_fast": "rope.scaling.yarn_beta_fast",
        "beta_slow": "rope.scaling.yarn_beta_slow",
    }
    found = {ours: fields.number(key) for ours, key in keys.items() if fields.get(key) is not None}
    for key in ("rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor"):
        if fields.get(key) not in (None, 1.0):
            raise fields.error(key, fields.get(key), "1")
    return {"rope_type": "yarn", **found}


_SCALINGS: dict[str, Callable[[Fields], dict[str, Any]]] = {
    "none": lambda _: {"rope_type": "default"},
    "linear": _linear,
    "yarn": _yarn,
}
