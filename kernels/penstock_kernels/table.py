"""Which implementation an op takes on which device: one row for every op.

A row names the reference, which takes all arguments on all devices, and what is faster than it: a C function on a CPU,
a Triton kernel on CUDA (and everywhere under Triton's interpreter). A new implementation is a file in its folder and a
name here. All implementations of an op take the same arguments, which the op has checked.
"""

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any, Generic, ParamSpec, TypeVar

import torch

from penstock_kernels import reference
from penstock_kernels.base.attention_spans import MAX_KERNEL_INDEX_DIM, MAX_KERNEL_RANK, LatentArguments
from penstock_kernels.base.devices import runs_kernels
from penstock_kernels.base.recurrent_spans import RecurrentSpans
from penstock_kernels.native import activation as c_activation
from penstock_kernels.native import adapted_embedding as c_adapted_embedding
from penstock_kernels.native import adapters as c_adapters
from penstock_kernels.native import angles as c_angles
from penstock_kernels.native import attention as c_attention
from penstock_kernels.native import bitmask as c_bitmask
from penstock_kernels.native import causal_conv as c_causal_conv
from penstock_kernels.native import choose_positions as c_choose_positions
from penstock_kernels.native import decodes as c_decodes
from penstock_kernels.native import delta_rule as c_delta_rule
from penstock_kernels.native import embedding as c_embedding
from penstock_kernels.native import finite as c_finite
from penstock_kernels.native import gated_norm as c_gated_norm
from penstock_kernels.native import grouped_mlp as c_grouped_mlp
from penstock_kernels.native import latent_attention as c_latent_attention
from penstock_kernels.native import latents as c_latents
from penstock_kernels.native import linear as c_linear
from penstock_kernels.native import long_prompts as c_long_prompts
from penstock_kernels.native import norm as c_norm
from penstock_kernels.native import quantized as c_quantized
from penstock_kernels.native import rotary as c_rotary
from penstock_kernels.native import route as c_route
from penstock_kernels.native import sampling as c_sampling
from penstock_kernels.native import selective_scan as c_selective_scan
from penstock_kernels.native import spans as c_spans
from penstock_kernels.native import state_space as c_state_space
from penstock_kernels.native import store_kv as c_store_kv

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _always(*_: object) -> bool:
    return True


class Row(Generic[Arguments, Result]):
    """Who computes one op. The first argument, a tensor or something with a `device`, says where.

    `native` is for a CPU and for arguments of which `native_if` is true. `gpu` is "module.function" in `gpu/`, which is
    imported when it is first needed, and is for arguments of which `gpu_if` is true. A condition takes the arguments of
    the op. Where both may compute, the kernel does.
    """

    def __init__(
        self,
        reference: Callable[Arguments, Result],
        *,
        native: Callable[..., Result] | None = None,
        native_if: Callable[..., bool] = _always,
        gpu: str | None = None,
        gpu_if: Callable[..., bool] = _always,
    ) -> None:
        self.reference = reference
        self.native = native
        self.native_if = native_if
        self.gpu = gpu
        self.gpu_if = gpu_if

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        """Compute the op by the implementation for these arguments."""
        return self.choose(*args, **kwargs)(*args, **kwargs)

    def choose(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Callable[..., Result]:
        """The implementation for these arguments."""
        first: Any = args[0]
        device: torch.device = first.device
        if self.gpu is not None and runs_kernels(device) and self.gpu_if(*args, **kwargs):
            return launcher(self.gpu)
        if self.native is not None and device.type == "cpu" and self.native_if(*args, **kwargs):
            return self.native
        return self.reference


@cache
def launcher(name: str) -> Callable[..., Any]:
    """The function of `gpu/` that "module.function" names. The import of it imports Triton."""
    module, function = name.split(".")
    found: Callable[..., Any] = getattr(importlib.import_module(f"penstock_kernels.gpu.{module}"), function)
    return found


def _is_invariant(x: Any, weights: Any, bias: Any, invariant: bool) -> bool:
    """Where a row's result may depend on the number of rows, the product of PyTorch is taken: cuBLAS on CUDA."""
    return invariant


def _is_measured_faster(x: torch.Tensor, weight: Any = None, *_: object) -> bool:
    """Products of few rows are cuBLAS's where nothing else was measured."""
    module: Any = importlib.import_module("penstock_kernels.gpu.fused_linear")
    found: bool = module.is_faster(x, weight)
    return found


def _lie_alike(x: Any, ids: Any, weights: Any, gate_up: Any, down: Any, *_: object) -> bool:
    module: Any = importlib.import_module("penstock_kernels.gpu.quantized_experts")
    found: bool = module.supports(gate_up, down)
    return found


def _has_tiles_for(arguments: LatentArguments) -> bool:
    return arguments.key_up.shape[1] <= MAX_KERNEL_RANK


def has_index_tiles(dim: int) -> bool:
    """Whether the kernel of an index has tiles for keys of so many numbers."""
    return dim <= MAX_KERNEL_INDEX_DIM


def _has_index_tiles(query: torch.Tensor, *_: object) -> bool:
    return has_index_tiles(query.shape[2])


def _joins_nothing(
    slots: Any,
    positions: Any = None,
    tokens: Any = None,
    tables: Any = None,
    block_size: int = 0,
    spare: int = 0,
    max_span_len: int = 1,
) -> bool:
    """The kernel makes a span of every row."""
    return max_span_len == 1


def _have_one_token(*args: Any) -> bool:
    """Spans of one token have kernels whatever their sizes and types."""
    return all(arg.are_single for arg in args if isinstance(arg, RecurrentSpans))


def _keep_behind_tokens(*args: Any) -> bool:
    """The kernels copy states behind single tokens only."""
    return all(arg.are_single or arg.kept is None for arg in args if isinstance(arg, RecurrentSpans))


def _fit_chunks(x: Any, size: int, spans: RecurrentSpans) -> bool:
    """Longer spans have kernels in bfloat16 with keys of at most 128, where no states are kept behind tokens."""
    return x.dtype == torch.bfloat16 and size <= 128 and spans.kept is None


def _has_delta_kernel(query: Any, *others: Any) -> bool:
    return _have_one_token(*others) or _fit_chunks(query, query.shape[2], others[-1])


def _has_space_kernel(x: Any, *others: Any) -> bool:
    return _have_one_token(*others) or _fit_chunks(x, others[2].shape[2], others[-1])


rms_norm = Row(reference.rms_norm, native=c_norm.rms_norm, native_if=c_norm.supports, gpu="norm.rms_norm")
layer_norm = Row(
    reference.layer_norm, native=c_norm.layer_norm, native_if=c_norm.supports, gpu="norm.layer_norm"
)
all_reduce = Row(reference.all_reduce, gpu="all_reduce.all_reduce")
all_reduce_add_rms_norm = Row(reference.all_reduce_add_rms_norm, gpu="all_reduce.all_reduce_add_rms_norm")
# On CUDA these are ops of PyTorch, one kernel each.
activate = Row(reference.activate, native=c_activation.activate, native_if=c_activation.supports)
soft_cap = Row(reference.soft_cap, native=c_activation.soft_cap, native_if=c_activation.supports)
silu_mul = Row(
    reference.silu_mul,
    native=c_activation.silu_mul,
    native_if=c_activation.supports_gated,
    gpu="activation.silu_mul",
)
gelu_mul = Row(
    reference.gelu_mul,
    native=c_activation.gelu_mul,
    native_if=c_activation.supports_gated,
    gpu="activation.gelu_mul",
)
gate_by_sigmoid = Row(
    reference.gate_by_sigmoid,
    native=c_activation.gate_by_sigmoid,
    native_if=c_activation.supports_gate,
    gpu="activation.gate_by_sigmoid",
)
clamped_swiglu = Row(
    reference.clamped_swiglu,
    native=c_activation.clamped_swiglu,
    native_if=c_activation.supports_gated,
    gpu="activation.clamped_swiglu",
)
linear = Row(
    reference.linear,
    native=c_linear.linear,
    native_if=c_linear.supports,
    gpu="linear.linear",
    gpu_if=_is_invariant,
)
fused_linear = Row(reference.fused_linear, gpu="fused_linear.fused_linear", gpu_if=_is_measured_faster)
quantized_linear = Row(
    reference.quantized_linear,
    native=c_quantized.quantized_linear,
    native_if=c_quantized.supports,
    gpu="quantized_linear.quantized_linear",
)
quantized_grouped_mlp = Row(
    reference.quantized_grouped_mlp,
    native=c_quantized.quantized_grouped_mlp,
    native_if=c_quantized.supports_experts,
    gpu="quantized_experts.quantized_grouped_mlp",
    gpu_if=_lie_alike,
)
add_adapters = Row(
    reference.add_adapters,
    native=c_adapters.add_adapters,
    native_if=c_adapters.supports,
    gpu="adapters.add_adapters",
)
adapt_embedding = Row(
    reference.adapt_embedding,
    native=c_adapted_embedding.adapt_embedding,
    native_if=c_adapted_embedding.supports,
    gpu="adapted_embedding.adapt_embedding",
)
embedding = Row(
    reference.embedding,
    native=c_embedding.embedding,
    native_if=c_embedding.supports,
    gpu="embedding.embedding",
)
route = Row(
    reference.route,
    native=c_route.route,
    native_if=c_route.supports,
    gpu="routing.route",
)
route_near = Row(reference.route_near)
grouped_mlp = Row(
    reference.grouped_mlp,
    native=c_grouped_mlp.grouped_mlp,
    native_if=c_grouped_mlp.supports,
    gpu="grouped_mlp.grouped_mlp",
)
rotary_table = Row(
    reference.rotary_table,
    native=c_angles.rotary_table,
    native_if=c_angles.supports,
    gpu="angles.rotary_table",
)
apply_rotary = Row(
    reference.apply_rotary,
    native=c_rotary.apply_rotary,
    native_if=c_rotary.supports_alone,
    gpu="rotary.apply_rotary",
)
rotate_and_store = Row(
    reference.rotate_and_store,
    native=c_rotary.rotate_and_store,
    native_if=c_rotary.supports,
    gpu="rotary.rotate_and_store",
)
store_kv = Row(
    reference.store_kv, native=c_store_kv.store_kv, native_if=c_store_kv.supports, gpu="store_kv.store_kv"
)
copy_blocks = Row(reference.copy_blocks, gpu="store_kv.copy_blocks")
paged_attention = Row(
    reference.paged_attention,
    native=c_long_prompts.paged_attention,
    native_if=c_attention.supports,
    gpu="attention.paged_attention",
)
rotate_and_store_latents = Row(
    reference.rotate_and_store_latents,
    native=c_latents.rotate_and_store_latents,
    native_if=c_latents.supports,
    gpu="latents.rotate_and_store_latents",
)
latent_attention = Row(
    reference.latent_attention,
    native=c_latent_attention.latent_attention,
    native_if=c_latent_attention.supports,
    gpu="latent_attention.latent_attention",
    gpu_if=_has_tiles_for,
)
choose_positions = Row(
    reference.choose_positions,
    native=c_choose_positions.choose_positions,
    native_if=c_choose_positions.supports,
    gpu="choose_positions.choose_positions",
    gpu_if=_has_index_tiles,
)
causal_conv = Row(
    reference.causal_conv,
    native=c_causal_conv.causal_conv,
    native_if=c_causal_conv.supports,
    gpu="causal_conv.causal_conv",
    gpu_if=_keep_behind_tokens,
)
gated_delta_rule = Row(
    reference.gated_delta_rule,
    native=c_delta_rule.gated_delta_rule,
    native_if=c_delta_rule.supports,
    gpu="delta_rule.gated_delta_rule",
    gpu_if=_has_delta_kernel,
)
state_space_scan = Row(
    reference.state_space_scan,
    native=c_state_space.state_space_scan,
    native_if=c_state_space.supports,
    gpu="state_space.state_space_scan",
    gpu_if=_has_space_kernel,
)
selective_scan = Row(
    reference.selective_scan,
    native=c_selective_scan.selective_scan,
    native_if=c_selective_scan.supports,
    gpu="selective_scan.selective_scan",
    gpu_if=_keep_behind_tokens,
)
gated_norm = Row(
    reference.gated_norm,
    native=c_gated_norm.gated_norm,
    native_if=c_gated_norm.supports,
    gpu="gated_norm.gated_norm",
)
find_decodes = Row(
    reference.find_decodes,
    native=c_decodes.find_decodes,
    native_if=c_decodes.supports,
    gpu="find_spans.find_decodes",
    gpu_if=_joins_nothing,
)
find_spans = Row(
    reference.find_spans,
    native=c_spans.find_spans,
    native_if=c_spans.supports,
    gpu="find_spans.find_spans",
)
write_runs = Row(reference.write_runs, gpu="write_runs.write_runs")
all_finite = Row(reference.all_finite, native=c_finite.all_finite, native_if=c_finite.supports)
penalize = Row(reference.penalize, gpu="adjust.penalize")
add_bias = Row(reference.add_bias, gpu="adjust.add_bias")
apply_bitmask = Row(
    reference.apply_bitmask,
    native=c_bitmask.apply_bitmask,
    native_if=c_bitmask.supports,
    gpu="adjust.apply_bitmask",
)
most_likely = Row(reference.most_likely, native=c_sampling.most_likely, native_if=c_sampling.supports)
draw = Row(reference.draw, native=c_sampling.draw, native_if=c_sampling.supports_draw, gpu="sampler.draw")
token_logprobs = Row(
    reference.token_logprobs,
    native=c_sampling.token_logprobs,
    native_if=c_sampling.supports,
    gpu="logprobs.token_logprobs",
)
gumbel = Row(reference.gumbel, gpu="noise.gumbel")
uniform = Row(reference.uniform, gpu="noise.uniform")
