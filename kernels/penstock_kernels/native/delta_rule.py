"""The gated delta rule in C, which reads and writes the matrices of slots where they are."""

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
    """`DeltaRule` of src/delta_rule.c, field by field."""

    _fields_ = (
        ("spans", Spans),
        ("decay", Forgetting),
        *((name, ctypes.c_void_p) for name in ("query", "key", "value", "beta", "state", "output")),
        *((name, ctypes.c_int64) for name in ("query_stride", "key_stride", "value_stride", "beta_stride")),
        *((name, ctypes.c_int32) for name in ("num_key_heads", "num_heads", "key_dim", "value_dim")),
        *((name, ctypes.c_int32) for name in ("dtype", "num_threads", "max_lanes")),
    )


@cache
def _can_correct(key_dim: int, value_dim: int) -> bool:
    compiled = library()
    return compiled is not None and bool(compiled.penstock_can_correct(key_dim, value_dim))


def supports(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    step: torch.Tensor,
    beta: torch.Tensor,
    decay: Decay,
    state: torch.Tensor,
    *_: object,
) -> bool:
    """Whether `gated_delta_rule` can take these, as the op has checked them."""
    return (
        value.dtype in DTYPES
        and is_dense(query, key, value, step, beta)
        and state.is_contiguous()
        and _can_correct(*state.shape[2:])
    )


def gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    step: torch.Tensor,
    beta: torch.Tensor,
    decay: Decay,
    state: torch.Tensor,
    spans: RecurrentSpans,
    max_lanes: int = 0,
) -> torch.Tensor:
    """As the op; a token has the same bits whatever else is computed. `max_lanes` as in `paged_attention`."""
    output = torch.empty(value.shape, dtype=value.dtype)
    shared = spans_of(spans, len(state))
    call = _Call(
        shared,
        forgetting_of(decay, step),
        query.data_ptr(),
        key.data_ptr(),
        value.data_ptr(),
        beta.data_ptr(),
        state.data_ptr(),
        output.data_ptr(),
        query.stride(0),
        key.stride(0),
        value.stride(0),
        beta.stride(0),
        query.shape[1],
        value.shape[1],
        *state.shape[2:],
        DTYPES[value.dtype],
        threads_for(value.numel() * state.shape[2]),
        max_lanes,
    )
    kept = (query, key, value, step, beta, decay, state, output, shared)
    run("penstock_correct", call, *kept, failure=NO_ROW)
    return output
