"""The specs of layers that keep a state for each sequence in the place of keys and values."""

from dataclasses import dataclass
from typing import Literal, NamedTuple


class StateShape(NamedTuple):
    """The size of what one sequence keeps on a rank, whatever its length."""

    num_layers: int
    # The last inputs of the convolution: how many, and of how many channels.
    conv_len: int
    num_channels: int
    # The shape of the matrices of all heads; empty where there are none.
    matrices: tuple[int, ...] = ()


class KeptShape(NamedTuple):
    """The memory of one sequence where the code of a model has objects of its own for it: the bytes that do not grow
    with its length. Those that do are `CacheShape.kept_bytes`."""

    num_bytes: int


# The norm of the values that a layer makes from a token: none, or for all of them, without weights or with them.
SelectiveNorm = Literal["none", "plain", "weighted"]


@dataclass(frozen=True, slots=True)
class DeltaSpec:
    """The gated delta rule behind a short convolution; each key head serves several value heads."""

    num_key_heads: int
    key_dim: int
    num_heads: int
    value_dim: int
    conv_width: int
    # Query, key and value, gate and the two numbers of a head come from one tensor each, not from two mixed ones.
    split: bool


@dataclass(frozen=True, slots=True)
class RowDeltaSpec:
    """The delta rule behind a short convolution, where every row of a head's matrix forgets by itself (KDA)."""

    num_heads: int
    # The size of a head's keys and of its values.
    head_dim: int
    conv_width: int


@dataclass(frozen=True, slots=True)
class StateSpaceSpec:
    """The state space of Mamba-2 behind a short convolution; each group of numbers serves several heads."""

    num_heads: int
    head_dim: int
    num_groups: int
    state_size: int
    conv_width: int
    conv_bias: bool
    input_bias: bool
    output_bias: bool
    # Bounds of a step.
    min_step: float
    max_step: float
    # A norm over each group of the result; it may come before the gate.
    has_norm: bool
    norm_first: bool
    # The factors of gate, input, both groups and step; the layer's input is multiplied by the first of `outer` before.
    factors: tuple[float, ...]
    outer: tuple[float, float]


@dataclass(frozen=True, slots=True)
class SelectiveSpec:
    """The state space of Mamba-1 behind a short convolution: channels have no heads, and forget by themselves."""

    num_channels: int
    state_size: int
    conv_width: int
    # Size of the vector that the steps of all channels are made of.
    step_rank: int
    conv_bias: bool
    bias: bool
    # Norms of that vector and of what is written and read by; they may have weights.
    norm: SelectiveNorm
    norm_eps: float


@dataclass(frozen=True, slots=True)
class ShortConvSpec:
    """A short convolution between two gates: all that the layer keeps are the last inputs of it."""

    conv_width: int
    bias: bool


RecurrentSpec = DeltaSpec | RowDeltaSpec | StateSpaceSpec | SelectiveSpec | ShortConvSpec
