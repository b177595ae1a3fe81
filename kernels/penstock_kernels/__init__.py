"""Ops of a language model with a paged cache: public functions that check their arguments, each with a reference.

Nothing here knows the server. Importing has no effects: no device is touched and no setting is read.
"""

from penstock_kernels.base.attention_spans import (
    Attend,
    AttentionArguments,
    AttentionSpans,
    DecodeSpans,
    Scoring,
)
from penstock_kernels.base.results import Decodes, Logprobs, Routes
from penstock_kernels.base.sampling_params import DrawParams, PenaltyParams
from penstock_kernels.ops.activation import clamped_swiglu, gelu_mul, silu_mul
from penstock_kernels.ops.decodes import find_decodes
from penstock_kernels.ops.embedding import embedding
from penstock_kernels.ops.finite import all_finite
from penstock_kernels.ops.grouped_mlp import grouped_mlp
from penstock_kernels.ops.linear import linear
from penstock_kernels.ops.noise import gumbel, uniform
from penstock_kernels.ops.norm import layer_norm, rms_norm
from penstock_kernels.ops.paged_attention import attention_parts_bytes, own_attention, paged_attention
from penstock_kernels.ops.rotary import apply_rotary, rotary_table, rotate_and_store
from penstock_kernels.ops.route import route
from penstock_kernels.ops.sampling import add_bias, apply_bitmask, draw, penalize, token_logprobs
from penstock_kernels.ops.store_kv import copy_blocks, store_kv
from penstock_kernels.ops.write_runs import write_runs

__all__ = [
    "Attend",
    "AttentionArguments",
    "AttentionSpans",
    "DecodeSpans",
    "Decodes",
    "DrawParams",
    "Logprobs",
    "PenaltyParams",
    "Routes",
    "Scoring",
    "add_bias",
    "all_finite",
    "apply_bitmask",
    "apply_rotary",
    "attention_parts_bytes",
    "clamped_swiglu",
    "copy_blocks",
    "draw",
    "embedding",
    "find_decodes",
    "gelu_mul",
    "grouped_mlp",
    "gumbel",
    "layer_norm",
    "linear",
    "own_attention",
    "paged_attention",
    "penalize",
    "rms_norm",
    "rotary_table",
    "rotate_and_store",
    "route",
    "silu_mul",
    "store_kv",
    "token_logprobs",
    "uniform",
    "write_runs",
]
