"""The scan of Mamba-2 in C, which reads and writes the matrices of slots where they are."""

import ctypes
from functools import cache

import torch

from penstock_kernels.base.decay import Decay
from penstock_kernels.base.recurrent_spans import RecurrentSpans
from penstock_kernels.native.library import DTYPES, library, run
from penstock_kernels.native.recurrent_spans import (
    NO_ROW,
    Forgetting,
    Spans,
    forgetting_of,
    is_dense,
    spans_of,
    threads_for,
)


class _Call(ctypes.Structure):
    """`StateSpace` of src/state_space.c, field by field."""

    _fields_ = (
        ("spans", Spans),
        ("decay", Forgetting),
        *((name, ctypes.c_void_p) for name in ("x", "inward", "outward", "skip", "state", "output")),
        *((name, ctypes.c_int64) for name in ("x_stride", "inward_stride", "outward_stride")),
        *((name, ctypes.c_int32) for name in ("num_heads", "num_groups", "dim", "state_size")),
        *((name, ctypes.c_int32) for name in ("dtype", "num_threads", "max_lanes")),
    )


@cache
def _can_scan(dim: int, state_size: int) -> bool:
    compiled = library()
    return compiled is not None and bool(compiled.penstock_can_scan(dim, state_size))


def supports(
    x: torch.Tensor,
    step: torch.Tensor,
    decay: Decay,
    inward: torch.Tensor,
    outward: torch.Tensor,
    skip: torch.Tensor,
    state: torch.Tensor,
    *_: object,
) -> bool:
    """Whether `state_space_scan` can take these, as the op has checked them."""
    return (
        x.dtype in DTYPES
        and is_dense(x, step, inward, outward)
        and state.is_contiguous()
        and _can_scan(*state.shape[2:])
    )


def state_space_scan(
    x: torch.Tensor,
    step: torch.Tensor,
    decay: Decay,
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
        forgetting_of(decay, step),
        x.data_ptr(),
        inward.data_ptr(),
        outward.data_ptr(),
        skip.data_ptr(),
        state.data_ptr(),
        output.data_ptr(),
        x.stride(0),
        inward.stride(0),
        outward.stride(0),
        x.shape[1],
        inward.shape[1],
        *state.shape[2:],
        DTYPES[x.dtype],
        threads_for(x.numel() * state.shape[3]),
        max_lanes,
    )
    kept = (x, step, decay, inward, outward, skip, state, output, shared)
    run("penstock_scan", call, *kept, failure=NO_ROW)
    return output
