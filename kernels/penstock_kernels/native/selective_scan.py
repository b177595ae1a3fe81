"""The scan of Mamba-1 in C, which reads and writes the states of slots where they are."""

import ctypes
from functools import cache

import torch

from penstock_kernels.base.recurrent_spans import RecurrentSpans
from penstock_kernels.native.library import DTYPES, library, run
from penstock_kernels.native.recurrent_spans import NO_ROW, Spans, is_dense, spans_of, threads_for


class _Call(ctypes.Structure):
    """`Selective` of src/selective_scan.c, field by field."""

    _fields_ = (
        ("spans", Spans),
        *((name, ctypes.c_void_p) for name in ("x", "step", "step_bias", "rate", "inward", "outward")),
        *((name, ctypes.c_void_p) for name in ("skip", "state", "output")),
        *((name, ctypes.c_int64) for name in ("x_stride", "step_stride", "inward_stride", "outward_stride")),
        *((name, ctypes.c_int32) for name in ("num_channels", "state_size")),
        *((name, ctypes.c_int32) for name in ("dtype", "num_threads", "max_lanes")),
    )


@cache
def _can_select(num_channels: int, state_size: int) -> bool:
    compiled = library()
    return compiled is not None and bool(compiled.penstock_can_select(num_channels, state_size))


def supports(
    x: torch.Tensor,
    step: torch.Tensor,
    step_bias: torch.Tensor,
    rate: torch.Tensor,
    inward: torch.Tensor,
    outward: torch.Tensor,
    skip: torch.Tensor,
    state: torch.Tensor,
    *_: object,
) -> bool:
    """Whether `selective_scan` can take these, as the op has checked them."""
    return (
        x.dtype in DTYPES
        and is_dense(x, step, inward, outward)
        and state.is_contiguous()
        and _can_select(*rate.shape)
    )


def selective_scan(
    x: torch.Tensor,
    step: torch.Tensor,
    step_bias: torch.Tensor,
    rate: torch.Tensor,
    inward: torch.Tensor,
    outward: torch.Tensor,
    skip: torch.Tensor,
    state: torch.Tensor,
    spans: RecurrentSpans,
    max_lanes: int = 0,
) -> torch.Tensor:
    """As the op; a token has the same bits whatever else is computed. `max_lanes` as in `paged_attention`."""
    output = torch.empty(x.shape, dtype=x.dtype)
    shared = spans_of(spans, len(state))
    call = _Call(
        shared,
        x.data_ptr(),
        step.data_ptr(),
        step_bias.data_ptr(),
        rate.data_ptr(),
        inward.data_ptr(),
        outward.data_ptr(),
        skip.data_ptr(),
        state.data_ptr(),
        output.data_ptr(),
        x.stride(0),
        step.stride(0),
        inward.stride(0),
        outward.stride(0),
        *rate.shape,
        DTYPES[x.dtype],
        threads_for(x.numel() * rate.shape[1]),
        max_lanes,
    )
    kept = (x, step, step_bias, rate, inward, outward, skip, state, output, shared)
    run("penstock_select", call, *kept, failure=NO_ROW)
    return output
