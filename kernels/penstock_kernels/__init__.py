"""Ops of a language model with a paged cache: public functions that check their arguments, each with a reference.

Nothing here knows the server. Importing has no effects: no device is touched and no setting is read.
"""

from penstock_kernels.base.adapter_rows import AdapterRows
from penstock_kernels.base.adapter_table import AdapterTable, AdapterWeights, EmbeddingTable, EmbeddingWeights
from penstock_kernels.base.attention_spans import (
    Attend,
    AttendLatents,
    AttentionArguments,
    AttentionSpans,
    DecodeSpans,
    LatentArguments,
    Scoring,
)
from penstock_kernels.base.decay import Decay
from penstock_kernels.base.expert_matrices import ExpertMatrices
from penstock_kernels.base.expert_part import ExpertPart
from penstock_kernels.base.head_norm import NormOfHeads
from penstock_kernels.base.input_norm import InputNorm
from penstock_kernels.base.peers import Peers
from penstock_kernels.base.quantized import Float8Grid, IntGroups, Matrix, Quantized, TableBlocks
from penstock_kernels.base.recurrent_spans import RecurrentSpans
from penstock_kernels.base.results import Decodes, FoundSpans, Logprobs, Routes
from penstock_kernels.base.routing import Routing
from penstock_kernels.base.sampling_params import DrawParams, PenaltyParams
from penstock_kernels.ops.activation import (
    activate,
    clamped_swiglu,
    gate_by_sigmoid,
    gelu_mul,
    silu_mul,
    soft_cap,
)
from penstock_kernels.ops.adapters import adapt_embedding, add_adapters
from penstock_kernels.ops.all_reduce import all_reduce, all_reduce_add_rms_norm
from penstock_kernels.ops.causal_conv import causal_conv
from penstock_kernels.ops.choose_positions import captures_choices, choice_bytes, choose_positions
from penstock_kernels.ops.decodes import find_decodes
from penstock_kernels.ops.delta_rule import gated_delta_rule
from penstock_kernels.ops.embedding import embedding
from penstock_kernels.ops.finite import all_finite
from penstock_kernels.ops.fused_linear import fused_linear, is_fused
from penstock_kernels.ops.gated_norm import gated_norm
from penstock_kernels.ops.grouped_mlp import grouped_mlp
from penstock_kernels.ops.latent_attention import (
    latent_attention,
    latent_parts_bytes,
    own_latent_attention,
    rotate_and_store_latents,
)
from penstock_kernels.ops.linear import linear
from penstock_kernels.ops.noise import gumbel, uniform
from penstock_kernels.ops.norm import layer_norm, rms_norm
from penstock_kernels.ops.paged_attention import attention_parts_bytes, own_attention, paged_attention
from penstock_kernels.ops.quantized_grouped_mlp import captures_experts, quantized_grouped_mlp
from penstock_kernels.ops.quantized_linear import quantized_linear
from penstock_kernels.ops.rotary import apply_rotary, rotary_table, rotate_and_store
from penstock_kernels.ops.route import route, route_near
from penstock_kernels.ops.sampling import add_bias, apply_bitmask, draw, most_likely, penalize, token_logprobs
from penstock_kernels.ops.selective_scan import selective_scan
from penstock_kernels.ops.spans import find_spans
from penstock_kernels.ops.state_space import state_space_scan
from penstock_kernels.ops.store_kv import copy_blocks, store_kv
from penstock_kernels.ops.write_runs import write_runs

__all__ = [
    "AdapterRows",
    "AdapterTable",
    "AdapterWeights",
    "Attend",
    "AttendLatents",
    "AttentionArguments",
    "AttentionSpans",
    "Decay",
    "DecodeSpans",
    "Decodes",
    "DrawParams",
    "EmbeddingTable",
    "EmbeddingWeights",
    "ExpertMatrices",
    "ExpertPart",
    "Float8Grid",
    "FoundSpans",
    "InputNorm",
    "IntGroups",
    "LatentArguments",
    "Logprobs",
    "Matrix",
    "NormOfHeads",
    "Peers",
    "PenaltyParams",
    "Quantized",
    "RecurrentSpans",
    "Routes",
    "Routing",
    "Scoring",
    "TableBlocks",
    "activate",
    "adapt_embedding",
    "add_adapters",
    "add_bias",
    "all_finite",
    "all_reduce",
    "all_reduce_add_rms_norm",
    "apply_bitmask",
    "apply_rotary",
    "attention_parts_bytes",
    "captures_choices",
    "captures_experts",
    "causal_conv",
    "choice_bytes",
    "choose_positions",
    "clamped_swiglu",
    "copy_blocks",
    "draw",
    "embedding",
    "find_decodes",
    "find_spans",
    "fused_linear",
    "gate_by_sigmoid",
    "gated_delta_rule",
    "gated_norm",
    "gelu_mul",
    "grouped_mlp",
    "gumbel",
    "is_fused",
    "latent_attention",
    "latent_parts_bytes",
    "layer_norm",
    "linear",
    "most_likely",
    "own_attention",
    "own_latent_attention",
    "paged_attention",
    "penalize",
    "quantized_grouped_mlp",
    "quantized_linear",
    "rms_norm",
    "rotary_table",
    "rotate_and_store",
    "rotate_and_store_latents",
    "route",
    "route_near",
    "selective_scan",
    "silu_mul",
    "soft_cap",
    "state_space_scan",
    "store_kv",
    "token_logprobs",
    "uniform",
    "write_runs",
]
