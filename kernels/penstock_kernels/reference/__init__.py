"""The reference of every op in plain PyTorch: what a kernel must equal, and what runs where no kernel can.

An op's reference, its Triton kernel and its C function take the same arguments and return the same result. A reference
calls nothing but PyTorch and other references.
"""

from penstock_kernels.reference.activation import (
    activate,
    clamped_swiglu,
    gate_by_sigmoid,
    gelu_mul,
    silu_mul,
    soft_cap,
)
from penstock_kernels.reference.adapters import adapt_embedding, add_adapters
from penstock_kernels.reference.all_reduce import all_reduce, all_reduce_add_rms_norm
from penstock_kernels.reference.attention import paged_attention
from penstock_kernels.reference.causal_conv import causal_conv
from penstock_kernels.reference.choose_positions import choose_positions
from penstock_kernels.reference.decodes import find_decodes
from penstock_kernels.reference.delta_rule import gated_delta_rule
from penstock_kernels.reference.embedding import embedding
from penstock_kernels.reference.finite import all_finite
from penstock_kernels.reference.fused_linear import fused_linear
from penstock_kernels.reference.gated_norm import gated_norm
from penstock_kernels.reference.grouped_mlp import grouped_mlp
from penstock_kernels.reference.latent_attention import latent_attention, rotate_and_store_latents
from penstock_kernels.reference.linear import linear
from penstock_kernels.reference.noise import gumbel, uniform
from penstock_kernels.reference.norm import layer_norm, rms_norm
from penstock_kernels.reference.quantized_grouped_mlp import quantized_grouped_mlp
from penstock_kernels.reference.quantized_linear import quantized_linear
from penstock_kernels.reference.rotary import apply_rotary, rotary_table, rotate_and_store
from penstock_kernels.reference.route import route, route_near
from penstock_kernels.reference.sampling import (
    add_bias,
    apply_bitmask,
    draw,
    most_likely,
    penalize,
    token_logprobs,
)
from penstock_kernels.reference.selective_scan import selective_scan
from penstock_kernels.reference.spans import find_spans
from penstock_kernels.reference.state_space import state_space_scan
from penstock_kernels.reference.store_kv import copy_blocks, store_kv
from penstock_kernels.reference.write_runs import write_runs

__all__ = [
    "activate",
    "adapt_embedding",
    "add_adapters",
    "add_bias",
    "all_finite",
    "all_reduce",
    "all_reduce_add_rms_norm",
    "apply_bitmask",
    "apply_rotary",
    "causal_conv",
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
    "latent_attention",
    "layer_norm",
    "linear",
    "most_likely",
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
