"""Short convolutions in C: otherwise a dozen ops of PyTorch, and copies of all inputs."""

import ctypes
from functools import cache

import torch

from penstock_kernels.base.recurrent_spans import RecurrentSpans
from penstock_kernels.native.library import DTYPES, library, run
from penstock_kernels.native.recurrent_spans import NO_ROW, Spans, is_dense, spans_of, threads_for


class _Call(ctypes.Structure):
    """`CausalConv` of src/causal_conv.c, field by field."""

    _fields_ = (
        ("spans", Spans),
        *((name, ctypes.c_void_p) for name in ("x", "weight", "bias", "state", "output")),
        ("x_stride", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("num_channels", "width", "has_silu")),
        *((name, ctypes.c_int32) for name in ("dtype", "num_threads", "max_lanes")),
    )


@cache
def _can_convolve(num_channels: int, width: int) -> bool:
    compiled = library()
    return compiled is not None and bool(compiled.penstock_can_convolve(num_channels, width))


def supports(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, state: torch.Tensor, *_: object
) -> bool:
    """Whether `causal_conv` can take these, as the op has checked them."""
    return (
        x.dtype in DTYPES
        and is_dense(x)
        and weight.is_contiguous()
        and state.is_contiguous()
        and _can_convolve(*weight.shape)
    )


def causal_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    state: torch.Tensor,
    spans: RecurrentSpans,
    silu: bool,
    max_lanes: int = 0,
) -> torch.Tensor:
    """As the op; a token has the same bits whatever else is computed. `max_lanes` as in `paged_attention`."""
    output = torch.empty(x.shape, dtype=x.dtype)
    shared = spans_of(spans, len(state))
    call = _Call(
        shared,
        x.data_ptr(),
        weight.data_ptr(),
        None if bias is None else bias.data_ptr(),
        state.data_ptr(),
        output.data_ptr(),
        x.stride(0),
        *weight.shape,
        silu,
        DTYPES[x.dtype],
        threads_for(8 * x.numel()),
        max_lanes,
    )
    run("penstock_convolve", call, x, weight, bias, state, output, shared, failure=NO_ROW)
    return output
