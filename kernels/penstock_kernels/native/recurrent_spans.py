"""Arguments that the ops of recurrent layers in C share: the spans of a step, and how heads forget."""

import ctypes

import torch

from penstock_kernels.base.decay import Decay
from penstock_kernels.base.recurrent_spans import RecurrentSpans
from penstock_kernels.native.library import WORTH_THREADS, Failure


class Spans(ctypes.Structure):
    """`RecurrentSpans` of src/recurrent.h, field by field. What it points to lives as long as this."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("slots", "starts", "is_first", "kept")),
        *((name, ctypes.c_int64) for name in ("num_spans", "num_slots")),
    )
    owners: tuple[object, ...]


class Forgetting(ctypes.Structure):
    """`Decay` of src/recurrent.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("log_rate", "step_bias", "step")),
        ("step_stride", ctypes.c_int64),
        *((name, ctypes.c_float) for name in ("min_step", "max_step")),
    )


def spans_of(spans: RecurrentSpans, num_slots: int) -> Spans:
    """The spans as an argument of ops in C; made once for all layers of a step."""
    return spans.shared(("native", num_slots), lambda: _spans_of(spans, num_slots))


def _spans_of(spans: RecurrentSpans, num_slots: int) -> Spans:
    ends = [0]
    for length in spans.query_lens:
        ends.append(ends[-1] + length)
    starts = (ctypes.c_int64 * len(ends))(*ends)
    slots, is_first = spans.slots.contiguous(), spans.is_first.contiguous()
    rows = None if spans.kept is None else spans.kept.contiguous()
    call = Spans(
        slots.data_ptr(),
        ctypes.addressof(starts),
        is_first.data_ptr(),
        None if rows is None else rows.data_ptr(),
        len(spans.query_lens),
        num_slots,
    )
    call.owners = (slots, starts, is_first, rows)
    return call


def forgetting_of(decay: Decay, step: torch.Tensor) -> Forgetting:
    """`step` must stay alive, and have no gaps between heads."""
    return Forgetting(
        decay.log_rate.data_ptr(),
        decay.step_bias.data_ptr(),
        step.data_ptr(),
        step.stride(0),
        decay.min_step,
        decay.max_step,
    )


def is_dense(*rows: torch.Tensor) -> bool:
    """Whether the numbers of every token lie together; tokens need not."""
    return all(part[0].is_contiguous() for part in rows if len(part))


def threads_for(work: int) -> int:
    """How many threads are worth so many numbers."""
    return torch.get_num_threads() if work >= WORTH_THREADS else 1


def no_row() -> Exception:
    """The error for a span that has no row of the state."""
    return IndexError("a span has no row of the state")


NO_ROW: Failure = no_row
