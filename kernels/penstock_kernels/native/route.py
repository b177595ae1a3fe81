"""The choice of experts in C, and the weighted sum of what they made of each token."""

import ctypes

import torch

from penstock_kernels.base.results import Routes
from penstock_kernels.base.routing import PLAIN, Routing
from penstock_kernels.native.library import DTYPES, WORTH_THREADS, library, run


class _Call(ctypes.Structure):
    """`Route` of src/route.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("logits", "correction", "weights", "expert_ids")),
        *((name, ctypes.c_int64) for name in ("stride", "num_rows")),
        *((name, ctypes.c_int32) for name in ("num_experts", "top_k", "dtype", "normalized")),
        *((name, ctypes.c_int32) for name in ("sigmoid", "num_groups", "top_groups", "sums_pairs")),
        ("scale", ctypes.c_float),
    )


class _Sum(ctypes.Structure):
    """`Sum` of src/route.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("found", "weights", "output")),
        *((name, ctypes.c_int64) for name in ("num_rows", "num_choices", "len")),
        *((name, ctypes.c_int32) for name in ("dtype", "num_threads")),
    )


def supports(logits: torch.Tensor, *_: object) -> bool:
    """Whether `route` can take these scores."""
    compiled = library()
    return (
        logits.dtype in DTYPES
        and compiled is not None
        and bool(compiled.penstock_can_route(ctypes.c_int64(logits.shape[1])))
    )


def route(
    logits: torch.Tensor,
    top_k: int,
    normalized: bool,
    correction: torch.Tensor | None = None,
    routing: Routing = PLAIN,
) -> Routes:
    """The op in C."""
    weights = torch.empty(len(logits), top_k, dtype=torch.float32)
    expert_ids = torch.empty(len(logits), top_k, dtype=torch.int64)
    call = _Call(
        logits.data_ptr(),
        None if correction is None else correction.data_ptr(),
        weights.data_ptr(),
        expert_ids.data_ptr(),
        logits.stride(0),
        *logits.shape,
        top_k,
        DTYPES[logits.dtype],
        normalized,
        routing.sigmoid,
        routing.num_groups,
        routing.top_groups,
        routing.sums_pairs,
        routing.scale,
    )
    run("penstock_route", call, logits, correction, weights, expert_ids)
    return Routes(weights, expert_ids)


def sum_of_choices(found: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """[num_tokens * num_choices, len] by [num_tokens, num_choices] to [num_tokens, len], in the order of choices."""
    num_rows, num_choices = weights.shape
    output = torch.empty(num_rows, found.shape[1], dtype=found.dtype)
    wide = weights.float()
    call = _Sum(
        found.data_ptr(),
        wide.data_ptr(),
        output.data_ptr(),
        num_rows,
        num_choices,
        found.shape[1],
        DTYPES[found.dtype],
        torch.get_num_threads() if found.numel() >= WORTH_THREADS else 1,
    )
    run("penstock_sum_choices", call, found, wide, output)
    return output
