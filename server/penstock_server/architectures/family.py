"""One row per family: how a model_type differs from a plain decoder, and where it keeps its weights. Data only."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock_server.architectures.recurrent_spec import SelectiveNorm

# A fact of a family: a fixed value, or the key of config.json that has it.
Fact = bool | str
Number = float | str | None

# One tensor for query, key and value. stacked: all queries, then all keys, then all values; grouped: for each key
# head its queries, the key and the value; quartered: four parts of the heads, each all queries, values and keys.
QkvLayout = Literal["stacked", "grouped", "quartered"]
# head: each head, all with one weight vector; per_head: each head with a vector of its own; all_heads: all together;
# unit: each head, without weights, in layers that rotate. A rotation does not change the latter, so it may come behind.
QkNorm = Literal["head", "per_head", "all_heads", "unit"]


@dataclass(frozen=True, slots=True)
class NameMap:
    """Where a family keeps its weights: names of the checkpoint without `.weight` and `.bias`.

    Names of a layer stand under `layer`, `{}` being its number; an empty name means that there is no such thing. Where
    a fused name and split names are given, the one that the checkpoint has counts.
    """

    embedding: str = "model.embed_tokens"
    positions: str = ""
    embedding_norm: str = ""
    # The input that every layer gets from a token: its embedding, the projection from the hidden states and its norm,
    # and in a layer the gate, the projection back and its norm.
    layers_embedding: str = "model.embed_tokens_per_layer"
    layers_projection: str = "model.per_layer_model_projection"
    layers_norm: str = "model.per_layer_projection_norm"
    own_gate: str = "per_layer_input_gate"
    own_output: str = "per_layer_projection"
    own_norm: str = "post_per_layer_input_norm"
    layer_scale: str = "layer_scalar"
    final_norm: str = "model.norm"
    lm_head: str = "lm_head"
    layer: str = "model.layers.{}."
    # The prefix of the names of multi-token prediction, where it is no further layer of the model.
    mtp: str = ""
    attention_input_norm: str = "input_layernorm"
    attention_output_norm: str = ""
    mlp_input_norm: str = "post_attention_layernorm"
    mlp_output_norm: str = ""
    qkv: str = "self_attn.qkv_proj"
    query: str = "self_attn.q_proj"
    key: str = "self_attn.k_proj"
    value: str = "self_attn.v_proj"
    output: str = "self_attn.o_proj"
    # The gate of attention, where it has a projection of its own.
    attention_gate: str = ""
    # The projections of attention over latents: the way down and up of queries, and that of keys and values.
    query_down: str = "self_attn.q_a_proj"
    query_down_norm: str = "self_attn.q_a_layernorm"
    query_up: str = "self_attn.q_b_proj"
    latent_down: str = "self_attn.kv_a_proj_with_mqa"
    latent_norm: str = "self_attn.kv_a_layernorm"
    latent_up: str = "self_attn.kv_b_proj"
    # The parts of an index of latents.
    index_query: str = "self_attn.indexer.wq_b"
    index_key: str = "self_attn.indexer.wk"
    index_key_norm: str = "self_attn.indexer.k_norm"
    index_weights: str = "self_attn.indexer.weights_proj"
    # `{}` is the number of the head where every head has its own.
    query_norm: str = "self_attn.q_norm"
    key_norm: str = "self_attn.k_norm"
    sinks: str = "self_attn.sinks"
    # The prefix of the names of a recurrent layer; the rest is the same for all families of its kind.
    recurrent: str = "linear_attn."
    gate_up: str = "mlp.gate_up_proj"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    # An activation with numbers of its own.
    activation: str = "mlp.act_fn"
    router: str = "mlp.gate"
    # All experts in one tensor, which has no `.weight` in its name.
    experts_gate_up: str = "mlp.experts.gate_up_proj"
    experts_down: str = "mlp.experts.down_proj"
    # The matrices of one expert, `{}` being its number; with `flat`, tensors of all experts.
    expert_gate: str = "mlp.experts.{}.gate_proj"
    expert_up: str = "mlp.experts.{}.up_proj"
    expert_down: str = "mlp.experts.{}.down_proj"
    # The factors of the router's inputs, and of the weights of its choice.
    router_scale: str = ""
    expert_scale: str = ""
    # Where experts stand beside the dense feed-forward: the norms of its output, of their input, and of their output.
    dense_output_norm: str = ""
    experts_input_norm: str = ""
    experts_output_norm: str = ""
    # Added to the scores for the choice.
    router_correction: str = "mlp.gate.e_score_correction_bias"
    shared_gate_up: str = ""
    shared_gate: str = "mlp.shared_expert.gate_proj"
    shared_up: str = "mlp.shared_expert.up_proj"
    shared_down: str = "mlp.shared_expert.down_proj"
    shared_router: str = "mlp.shared_expert_gate"
    # Parts of names that checkpoints may have, and what stands here in their place.
    written: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Windows:
    """Which layers see only the last `sliding_window` positions, where config.json has no `layer_types`."""

    # Every n-th layer sees all positions; 0: no layer does.
    full_every: int = 0
    # It is the first of n, not the last.
    full_first: bool = False
    # The key that says n, for configs older than `layer_types`.
    pattern_key: str = "sliding_window_pattern"
    # The key with the first layer that has a window; only such layers have one.
    first_key: str = ""
    # The key with the first layer that has none.
    end_key: str = ""
    # The key that must be true for any window.
    switch_key: str = ""


@dataclass(frozen=True, slots=True)
class Temperature:
    """Keys of how queries grow with their position: every how many positions, and by how much."""

    interval: str = "floor_scale"
    strength: str = "attn_scale"
    # The key that says whether; there is none where the two stand among the numbers of the rotary embedding, and
    # nothing grows without the second.
    switch: str = "attn_temperature_tuning"
    in_rope: bool = False


@dataclass(frozen=True, slots=True)
class RotatingLayers:
    """Which layers rotate queries and keys, where the others have no positions at all."""

    # The key with one number for each layer: 0 for a layer that does not rotate.
    key: str = "no_rope_layers"
    # Without that list: the key of n, every n-th layer does not rotate, and what n is where that is missing, too.
    interval_key: str = "no_rope_layer_interval"
    interval: int = 4


@dataclass(frozen=True, slots=True)
class Experts:
    """Keys of config.json about experts."""

    size: str = "moe_intermediate_size"
    normalized: Fact = "norm_topk_prob"
    bias: bool = False
    # Each expert is scored by itself, not against the others.
    sigmoid: bool = False
    # The router computes in float32 whatever the type of the model.
    wide_router: bool = False
    # Numbers that are added to the scores for the choice only: how many dimensions their tensor has; 0: there are none.
    correction_dims: int = 0
    # Keys of how many groups there are and how many a token chooses among; and whether a group counts by its best two.
    groups: tuple[str, str] | None = None
    sums_pairs: bool = False
    # The factor of the weights.
    scale: Number = None
    # The key of a part of a score: a choice is weighed among the experts that lack at most twice that, not among all.
    jitter: str = ""
    # Keys of the first and of the last layer with experts; all others are dense.
    first_layer_key: str = ""
    last_layer_key: str = ""
    # The key with a list of the layers with experts, if it is there.
    layers_key: str = ""
    # Gate and up rows alternate, and the tensors are transposed: inputs first.
    interleaved: bool = False
    # The tensors of all experts are transposed, and all gates come first.
    inputs_first: bool = False
    # The matrices of all experts lie one below the other in a tensor, the last ones transposed.
    flat: bool = False
    # The weight of a choice multiplies the expert's input, not its output.
    weighs_inputs: bool = False
    # The key with the size of the shared expert; empty: there is none.
    shared_size: str = ""
    # The key of how many experts the shared one is as large as, where there is no size.
    shared_count: str = ""
    # The shared expert has a weight of its own for every token.
    gates_shared: bool = True
    # The outputs of the shared expert and of the others are averaged, not added.
    averages_shared: bool = False
    # Experts stand beside the dense feed-forward of every layer, where the switch is on.
    beside_dense: bool = False
    switch_key: str = ""


@dataclass(frozen=True, slots=True)
class Recurrent:
    """Layers that keep a state for each sequence, where `layer_types` says so; their sizes have the keys of Qwen3-Next
    (`linear_…`), Granite 4 and Jamba (`mamba_…`) and LFM2."""

    kind: Literal["delta", "row_delta", "state_space", "selective", "short_conv"]
    # The kind of each layer, where there is no list.
    usual_kind: str = "linear_attention"
    # A layer is either a mixer or a feed-forward, as `layer_types` says.
    single_parts: bool = False
    # The projections of the delta rule are a tensor each, not two mixed ones.
    split: bool = False
    # Mamba-1: the norms of what steps are made of, and of what is written and read by; the key of their eps, where it
    # is not that of all norms.
    selective_norm: SelectiveNorm = "none"
    selective_eps: str = ""
    # The state space: whether its result has a norm, before its gate or behind it; and whether its output has a bias.
    has_norm: Fact = True
    norm_first: Fact = False
    output_bias: Fact = "mamba_proj_bias"
    # The key of the least step, where `time_step_limit` does not count.
    min_step: str = ""


class WrongValue(Exception):
    """A row cannot be fitted to what config.json says: the key, its value and what is expected."""

    def __init__(self, key: str, value: Any, expected: str) -> None:
        super().__init__(key, value, expected)
        self.key, self.value, self.expected = key, value, expected


@dataclass(frozen=True, slots=True)
class Family:
    """One row. What a row leaves out is as in Llama."""

    model_type: str
    # For docs/models.md: the names of its models.
    title: str
    # Our key -> this family's key in config.json.
    aliases: Mapping[str, str] = field(default_factory=dict)
    # The values of our keys that config.json leaves out.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    # Keys that must have this value or be missing: with another value it is a different model.
    fixed: Mapping[str, Any] = field(default_factory=dict)
    norm_centered: bool = False
    norm_bias: bool = False
    norm_weight_offset: float = 0.0
    # Norms have weights; else they only norm.
    norm_weights: bool = True
    norm_eps: str = "rms_norm_eps"
    qkv_bias: Fact = False
    output_bias: Fact = False
    mlp_bias: Fact = False
    qk_norm: QkNorm | None = None
    # The key that switches qk_norm on, where there is one.
    qk_norm_key: str = ""
    # Norms of heads have a bias.
    qk_norm_bias: bool = False
    # Queries and keys are normalised after their rotation.
    qk_norm_after_rope: bool = False
    qkv_layout: QkvLayout = "stacked"
    # The limit of queries, keys and values as they leave their projections, on both sides of 0.
    qkv_limit: Number = None
    # The key whose square root divides the scores; else it is the size of a head.
    score_divisor_key: str = ""
    # The factor of the scores.
    attention_scale: Number = None
    attention_soft_cap: Number = None
    sinks: bool = False
    # Keys and values are made of a compressed vector, which is what the cache holds.
    latent: bool = False
    # Queries see the best positions only, as an index chooses them; whether its heads rotate in neighbouring pairs.
    indexed: bool = False
    interleaved_index: bool = False
    # The queries' projection, or one beside it, also makes a gate of what each head finds.
    gated_attention: bool = False
    # Keys of the key heads and the size of heads in layers that see everything; the first counts where values are made
    # as keys are.
    full_heads: tuple[str, str] | None = None
    # In layers that see everything, values are made as keys are.
    full_values_are_keys: Fact = False
    # Values are normed by head, without weights.
    value_norm: bool = False
    # The key of how many layers, the last ones, read keys and values of the last layer of their kind before them; and
    # the key that says whether their feed-forward is twice as wide.
    kv_readers: tuple[str, str] | None = None
    # Keys of how many numbers each layer is given of a token, and of how many tokens have them.
    layer_inputs: tuple[str, str] | None = None
    # A layer's output is multiplied by a number of its own.
    scales_layers: bool = False
    # Some layers keep a state in the place of keys and values, or beside them.
    recurrent: Recurrent | None = None
    windows: Windows | None = None
    # The key of how long chunks are, of which a query sees its own, in layers that `layer_types` names or that rotate.
    chunk_key: str = ""
    temperature: Temperature | None = None
    rotary: bool = True
    # Scores lose something for each position between query and key (ALiBi), and whether that is scaled as they are.
    alibi: bool = False
    scales_alibi: bool = False
    # How many rows of the table of learned positions come before that of the first token.
    position_offset: int = 0
    interleaved_rope: Fact = False
    # Angles are turned backwards.
    backward_rope: bool = False
    # The key with how many numbers of a head are rotated; else it is a part of them.
    rotary_dim_key: str = ""
    # None: all layers rotate.
    rotating_layers: RotatingLayers | None = None
    # Layers that see everything do not rotate.
    rope_only_in_windows: bool = False
    # Layers with a window have a rotary embedding of their own, with this theta and no scaling.
    local_rope: tuple[str, float] | None = None
    # The key with the theta of each layer, 0 for one that does not rotate; without that list all have the model's.
    thetas_key: str = ""
    # Other names for kinds of rotary scaling.
    rope_kinds: Mapping[str, str] = field(default_factory=dict)
    activation: str = "hidden_act"
    # Other names for activations.
    activation_names: Mapping[str, str] = field(default_factory=dict)
    # The name silu in config.json means the clamped activation of gpt-oss.
    clamped_swiglu: bool = False
    gated: bool = True
    # The matrices of linear layers are transposed: inputs first.
    transposed: bool = False
    experts: Experts | None = None
    # Attention and feed-forward both read the same residual sum, and both are added to it.
    parallel: Fact = False
    # Keys of the factors of what attention takes and gives, of the gates and of what feed-forward gives (`Factors`).
    has_factors: bool = False
    embedding_scale: Number = 1.0
    scales_embedding_by_size: Fact = False
    residual_multiplier: Number = 1.0
    logit_scale: Number = 1.0
    logit_divisor: Number = 1.0
    logit_soft_cap: Number = None
    head_bias: Fact = False
    # The rows of the head are made of length 1.
    unit_head: bool = False
    names: NameMap = field(default_factory=NameMap)
    # Changes the row to fit one config.json, where a model_type stands for several architectures. May raise WrongValue.
    adapt: "Callable[[Family, dict[str, Any]], Family] | None" = None
