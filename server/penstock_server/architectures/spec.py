"""Everything that the decoder has to know of a model; every number is checked."""

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol

from penstock_server.architectures.family import NameMap, QkNorm, QkvLayout
from penstock_server.architectures.recurrent_spec import RecurrentSpec

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "xielu", "clamped_swiglu"]


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


class KvHeads(NamedTuple):
    """The heads of keys and values."""

    number: int
    dim: int


class CacheShape(NamedTuple):
    """The size of what the cache of a rank holds for each position."""

    # The heads of each layer.
    heads: tuple[KvHeads, ...]
    # Keys and values, or 1: a latent, from which both are made.
    num_tensors: int = 2
    # Bytes of a position that are in no tensor of the cache, but in what each slot keeps (`KeptShape`).
    kept_bytes: int = 0

    @property
    def num_layers(self) -> int:
        """Layers with a cache."""
        return len(self.heads)

    @property
    def position_size(self) -> int:
        """Numbers of a position, in all layers."""
        return self.num_tensors * sum(number * dim for number, dim in self.heads)


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
    has_attention: bool = True
    # Whether it keeps a state, in the place of attention or beside it.
    is_recurrent: bool = False
    has_feed_forward: bool = True
    # Sequences are divided into so many positions each, and a query sees those of its own; None: they are not.
    chunk: int | None = None
    # Where it has other ones than the model.
    kv_heads: KvHeads | None = None
    # The layer before it whose keys and values it reads; None: its own.
    kv_source: int | None = None
    # Values are made as keys are.
    values_are_keys: bool = False
    # The layer before it whose index of latents chooses for it, too; None: its own, if the model has one.
    index_source: int | None = None
    # The size of its dense feed-forward, where it is not the model's.
    intermediate_size: int | None = None

    @property
    def has_cache(self) -> bool:
        """Whether it keeps keys and values."""
        return self.has_attention and self.kv_source is None


class IndexSpec(NamedTuple):
    """Attention to the `top_k` best positions of a context alone, which heads of their own choose."""

    num_heads: int
    dim: int
    top_k: int
    # Its heads rotate in neighbouring pairs.
    interleaved_rope: bool


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """Attention over latents: what is cached of a token is a vector of `rank` numbers and `rope_dim` rotated ones."""

    # Size of the vector that queries are made of; None: they are made of the hidden states.
    query_rank: int | None
    rank: int
    # Numbers of a query and a key that are not rotated, and that are.
    nope_dim: int
    rope_dim: int
    value_dim: int
    # None: queries see all of their context.
    index: IndexSpec | None = None


class TemperatureSpec(NamedTuple):
    """Queries grow with the logarithm of their position, every `interval` positions."""

    interval: float
    strength: float
    # Whether it is those of layers that rotate, or those of the others, whose positions count from 1.
    rotates: bool

    def is_of(self, layer: LayerSpec) -> bool:
        """Whether the queries of a layer grow."""
        return self.rotates == (layer.rope is not None)


@dataclass(frozen=True, slots=True)
class NormSpec:
    """Every norm of the model but those of heads."""

    centered: bool
    bias: bool
    eps: float
    # Added to the weights: 1 for families that store them around 0.
    weight_offset: float
    has_weights: bool = True


class RoutingSpec(NamedTuple):
    """How a router scores experts; the numbers mean what they mean in the op `route`."""

    sigmoid: bool
    num_groups: int
    top_groups: int
    sums_pairs: bool
    scale: float


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
    # Dimensions of the tensor that corrects the choice; 0 for none.
    correction_dims: int
    # See `Experts`.
    inputs_first: bool
    flat: bool
    weighs_inputs: bool
    # The router computes in float32 whatever the type of the model.
    wide_router: bool
    routing: RoutingSpec
    # See the op `route_near`; None: `route` chooses.
    distance: float | None
    # Size of the expert that every token goes to; 0 for none.
    shared_size: int
    # Whether that expert has a weight of its own for every token.
    gates_shared: bool
    # Whether it counts half, and the others together the other half.
    averages_shared: bool
    # They stand beside the dense feed-forward, with norms of their own, and read what that reads before its norm.
    beside_dense: bool


class LayerInputs(NamedTuple):
    """The input that every layer gets from a token beside the hidden states: numbers of an embedding of its own."""

    size: int
    vocab_size: int


class Factors(NamedTuple):
    """The factors of attention's input and output, and of the gates and results of feed-forward layers."""

    attention_in: float = 1.0
    attention_out: float = 1.0
    gate: float = 1.0
    feed_forward_out: float = 1.0


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
    # Rows of the table of learned positions before that of the first token.
    position_offset: int
    layers: tuple[LayerSpec, ...]
    ropes: tuple[RopeSpec, ...]
    interleaved_rope: bool
    backward_rope: bool
    norm: NormSpec
    attention_scale: float
    attention_soft_cap: float | None
    sinks: bool
    # Subtracted from a score for each position between query and key, for each head; None: nothing.
    slopes: tuple[float, ...] | None
    temperature: TemperatureSpec | None
    latent: LatentSpec | None
    recurrent: RecurrentSpec | None
    gated_attention: bool
    factors: Factors
    qk_norm: QkNorm | None
    qk_norm_bias: bool
    qk_norm_after_rope: bool
    # Values are normed by head, without weights.
    value_norm: bool
    qkv_layout: QkvLayout
    # The limit of queries, keys and values as they leave their projections, on both sides of 0.
    qkv_limit: float | None
    qkv_bias: bool
    output_bias: bool
    activation: Activation
    gated: bool
    mlp_bias: bool
    transposed: bool
    moe: MoeSpec | None
    parallel: bool
    layer_inputs: LayerInputs | None
    # A layer's output is multiplied by a number of its own.
    scales_layers: bool
    embedding_scale: float
    residual_multiplier: float
    logit_scale: float
    logit_soft_cap: float | None
    head_bias: bool
    # The rows of the head are made of length 1 as they are loaded.
    unit_head: bool
    tied_embeddings: bool
    dtype: str
    eos_token_ids: tuple[int, ...]

    def at(self, number: int) -> "ModelSpec":
        """The model as one of its layers is built."""
        layer, names, heads = self.layers[number], self.names, self.kv_heads[number]
        return replace(
            self,
            num_kv_heads=heads.number,
            head_dim=heads.dim,
            intermediate_size=layer.intermediate_size or self.intermediate_size,
            names=replace(names, value=names.key) if layer.values_are_keys else names,
        )

    @property
    def kv_heads(self) -> tuple[KvHeads, ...]:
        """The heads of each layer, whether it attends or not."""
        usual = KvHeads(self.num_kv_heads, self.head_dim)
        return tuple(layer.kv_heads or usual for layer in self.layers)

    @property
    def num_layers(self) -> int:
        """Layers of the decoder."""
        return len(self.layers)

    @property
    def num_recurrent_layers(self) -> int:
        """Layers with a state."""
        return sum(layer.is_recurrent for layer in self.layers)

    @property
    def sees_trees(self) -> bool:
        """Whether all layers can see tokens that are a tree: those that see whatever is before a position."""
        if self.latent is not None or self.slopes is not None:
            return False
        kinds = (
            (layer.has_attention, layer.is_recurrent, layer.window, layer.chunk) for layer in self.layers
        )
        return all(kind == (True, False, None, None) for kind in kinds)

    @property
    def attention_window(self) -> int | None:
        """Positions that the layer with the widest window sees; None if some layer sees all, or none attends."""
        windows = [layer.window for layer in self.layers if layer.has_attention]
        return None if None in windows else max((window for window in windows if window), default=None)

    @property
    def num_chosen(self) -> int | None:
        """The positions of a longer context that a query sees, where an index chooses them."""
        index = None if self.latent is None else self.latent.index
        return None if index is None else index.top_k
