"""Everything that the decoder has to know of a model; every number is checked."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from penstock_server.architectures.family import NameMap, QkNorm, QkvLayout

Activation = Literal["silu", "gelu", "gelu_tanh", "clamped_swiglu"]


class ModelFacts(Protocol):
    """The facts of any model, whichever code computes it."""

    @property
    def model_type(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_sequence_len(self) -> int: ...
    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...
    @property
    def attention_window(self) -> int | None: ...


class CacheShape(NamedTuple):
    """The size of what the cache of a rank holds for each position."""

    num_layers: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding of the first `rotary_dim` numbers of a head; `scaling` holds the numbers of its `kind`."""

    theta: float
    kind: str
    scaling: dict[str, Any]
    rotary_dim: int


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """How one layer differs from its neighbours."""

    # How many positions a query sees; None is all.
    window: int | None
    # Number of its rotary embedding in `ModelSpec.ropes`; None for no rotation.
    rope: int | None
    is_sparse: bool


@dataclass(frozen=True, slots=True)
class NormSpec:
    """Every norm of the model but those of heads."""

    centered: bool
    bias: bool
    eps: float
    # Added to the weights: 1 for families that store them around 0.
    weight_offset: float


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """Experts of the sparse layers: a token goes to `top_k` of them."""

    num_experts: int
    top_k: int
    expert_size: int
    # Whether the weights of the chosen experts are made to sum to 1.
    normalized: bool
    bias: bool
    interleaved: bool
    # Size of the expert that every token goes to; 0 for none.
    shared_size: int


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Everything the decoder has to know about a model."""

    model_type: str
    names: NameMap
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_sequence_len: int
    layers: tuple[LayerSpec, ...]
    ropes: tuple[RopeSpec, ...]
    interleaved_rope: bool
    norm: NormSpec
    attention_scale: float
    attention_soft_cap: float | None
    sinks: bool
    qk_norm: QkNorm | None
    qkv_layout: QkvLayout
    qkv_bias: bool
    output_bias: bool
    activation: Activation
    gated: bool
    mlp_bias: bool
    transposed: bool
    moe: MoeSpec | None
    parallel: bool
    embedding_scale: float
    residual_multiplier: float
    logit_scale: float
    logit_soft_cap: float | None
    tied_embeddings: bool
    dtype: str
    eos_token_ids: tuple[int, ...]

    @property
    def num_layers(self) -> int:
        """Layers of the decoder."""
        return len(self.layers)

    @property
    def attention_window(self) -> int | None:
        """Positions that the layer with the widest window sees; None if some layer sees all."""
        windows = [layer.window for layer in self.layers]
        return None if None in windows else max(window for window in windows if window)
