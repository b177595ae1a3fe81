"""The rotary embeddings of a model, from config.json, in the spelling of transformers 4 or 5.

Version 4 has `rope_theta` beside `rope_scaling`; version 5 has `rope_parameters` with both, one for each kind of layer
where they differ.
"""

from dataclasses import replace
from typing import Any, NamedTuple

from penstock_server.architectures.family import Family
from penstock_server.architectures.fields import Fields
from penstock_server.architectures.spec import RopeSpec
from penstock_server.architectures.windows import LAYER_KINDS
from penstock_server.base.config import RopeOverride
from penstock_server.base.errors import StartError

_NUMBERS = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor",),
    "yarn": (),
    "longrope": (),
    # A larger base, whatever the length of a sequence.
    "ntk_alpha": ("alpha",),
    # A part of the pairs rotates, those with the fastest angles of all.
    "proportional": (),
}
_OPTIONAL_NUMBERS = ("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
                     "short_mscale", "long_mscale", "attention_factor", "factor",
                     "original_max_position_embeddings")  # fmt: skip


def read_ropes(
    fields: Fields, family: Family, dims: tuple[int, int], max_sequence_len: int
) -> tuple[RopeSpec, ...]:
    """The embedding of most layers, followed by that of layers with a window where it differs; `dims`: their heads'."""
    if not family.rotary:
        return ()
    scaling = _object(fields, "rope_parameters") or _object(fields, "rope_scaling")
    by_kind = {kind: value for kind, value in scaling.items() if kind in LAYER_KINDS}
    unknown = [kind for kind, value in scaling.items() if isinstance(value, dict) and kind not in LAYER_KINDS]
    if unknown or (family.local_rope is not None and len(by_kind) == 1):
        raise fields.error("rope_parameters", scaling, f"numbers for {' and '.join(LAYER_KINDS)}")
    if by_kind and family.local_rope is None:
        raise fields.error("rope_parameters", scaling, "one set of numbers for all layers")
    whole, local = (_Reader(fields, family, dim, max_sequence_len) for dim in dims)
    thetas = read_thetas(fields, family)
    if thetas is not None:
        each = ({**scaling, "rope_theta": theta} for theta in thetas.values)
        return tuple(whole.read(numbers, "rope_theta", None) for numbers in each)
    if family.local_rope is None:
        return (whole.read(scaling, "rope_theta", None),)
    local_key, local_theta = family.local_rope
    full = by_kind.get("full_attention", {} if by_kind else scaling)
    return (
        whole.read(full or {}, "rope_theta", None),
        local.read(by_kind.get("sliding_attention") or {}, local_key, local_theta),
    )


class Thetas(NamedTuple):
    """The thetas of all layers, each once, and for each layer the number of its theta; None: it does not rotate."""

    values: tuple[float, ...]
    of_layers: tuple[int | None, ...]


def read_thetas(fields: Fields, family: Family) -> Thetas | None:
    """None: every layer has that of the model."""
    if not family.thetas_key or fields.get(family.thetas_key) is None:
        return None
    listed, num_layers = fields.get(family.thetas_key), fields.integer("num_hidden_layers")
    if not isinstance(listed, list) or len(listed) != num_layers or not all(map(_is_theta, listed)):
        expected = f"0 or a number above 1 for each of the {num_layers} layers"
        raise fields.error(family.thetas_key, listed, expected)
    values = tuple(sorted({float(theta) for theta in listed if theta}))
    return Thetas(values, tuple(values.index(theta) if theta else None for theta in listed))


def _is_theta(value: Any) -> bool:
    return type(value) in (int, float) and (value == 0 or 1 < value < 1e30)


def replace_scaling(
    ropes: tuple[RopeSpec, ...], override: RopeOverride, max_sequence_len: int, has_thetas: bool = False
) -> tuple[tuple[RopeSpec, ...], int]:
    """Another scaling in the place of config.json's, and the longest sequence with it.

    Layers with a window keep theirs: what they see does not become longer. `has_thetas`: layers have a theta each.
    """
    if not ropes:
        raise StartError("--rope-scaling and --rope-factor: the positions of this model are not rotary")
    if has_thetas and len(ropes) > 1:
        raise StartError(
            "--rope-scaling and --rope-factor: the layers of this model rotate by different angles"
        )
    numbers = {"factor": override.factor, "original_max_position_embeddings": float(max_sequence_len)}
    scaled = replace(ropes[0], kind=override.kind, scaling=numbers)
    return (scaled, *ropes[1:]), int(max_sequence_len * override.factor)


def _object(fields: Fields, key: str) -> dict[str, Any]:
    value = fields.get(key, {})
    if not isinstance(value, dict):
        raise fields.error(key, value, "an object")
    return value


class _Reader:
    """Reads the fields that all rotary embeddings of a model have in common."""

    def __init__(self, fields: Fields, family: Family, head_dim: int, max_sequence_len: int) -> None:
        self.fields = fields
        self.family = family
        self.head_dim = head_dim
        self.max_sequence_len = max_sequence_len

    def read(self, scaling: Any, theta_key: str, theta: float | None) -> RopeSpec:
        """One embedding; `theta_key` is where transformers 4 has its theta."""
        if not isinstance(scaling, dict):
            raise self.fields.error("rope_parameters", scaling, "an object")
        inner = Fields(scaling, self.fields.path)
        written = inner.get("rope_type") or inner.get("type") or "default"
        kind = self.family.rope_kinds.get(str(written), str(written))
        if kind == "dynamic" and inner.get("alpha"):
            kind = "ntk_alpha"
        if kind not in _NUMBERS:
            supported = ", ".join(_NUMBERS)
            raise self.fields.error("rope type", written, f"one of {supported}")
        theta = inner.number("rope_theta", self.fields.number(theta_key, theta or 10000.0))
        if theta <= 1:
            raise self.fields.error("rope_theta", theta, "a number above 1")
        if kind == "proportional":
            numbers = {"factor": inner.number("factor", 1.0), "num_pairs": self._num_pairs(inner)}
            return RopeSpec(theta, kind, numbers, self.head_dim)
        rotary_dim = self._rotary_dim(inner)
        return RopeSpec(theta, kind, self._numbers(inner, kind, rotary_dim), rotary_dim)

    def _num_pairs(self, inner: Fields) -> int:
        """How many pairs of numbers rotate, where all of a head count as rotated."""
        share = inner.number("partial_rotary_factor", 1.0)
        if share > 1:
            raise self.fields.error("partial_rotary_factor", share, "a number of at most 1")
        return int(share * self.head_dim // 2)

    def _rotary_dim(self, inner: Fields) -> int:
        if self.family.latent:
            return self.head_dim  # of what rotates, which is apart
        key = self.family.rotary_dim_key
        if key:
            rotary_dim = self.fields.integer(key, default=self.head_dim, high=self.head_dim)
            if rotary_dim % 2:
                raise self.fields.error(key, rotary_dim, "an even number")
            return rotary_dim
        share = inner.number("partial_rotary_factor", self.fields.number("partial_rotary_factor", 1.0))
        rotary_dim = int(self.head_dim * share)
        if rotary_dim % 2 or not 2 <= rotary_dim <= self.head_dim:
            raise self.fields.error(
                "partial_rotary_factor", share, f"an even part of the {self.head_dim} numbers of a head"
            )
        return rotary_dim

    def _numbers(self, inner: Fields, kind: str, rotary_dim: int) -> dict[str, Any]:
        found: dict[str, Any] = {key: inner.number(key) for key in _NUMBERS[kind]}
        for key in _OPTIONAL_NUMBERS:
            if inner.get(key) is not None:
                found[key] = inner.number(key)
        if self.fields.get("original_max_position_embeddings") is not None:
            found["original_max_position_embeddings"] = self.fields.number("original_max_position_embeddings")
        original = found.setdefault("original_max_position_embeddings", float(self.max_sequence_len))
        found.setdefault("factor", max(self.max_sequence_len / original, 1.0))
        if kind == "longrope":
            found |= {key: inner.numbers(key, rotary_dim // 2) for key in ("short_factor", "long_factor")}
        if kind == "llama3" and found.setdefault("high_freq_factor", 4.0) <= found.setdefault(
            "low_freq_factor", 1.0
        ):
            raise inner.error("high_freq_factor", found["high_freq_factor"], "a number above low_freq_factor")
        found["truncate"] = bool(inner.get("truncate", True))
        return found
