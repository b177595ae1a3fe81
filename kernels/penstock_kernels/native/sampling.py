"""Rows of scores in C: log probabilities, the most likely token and draws, a few reads of a row each."""

import ctypes

import torch

from penstock_kernels.base.results import Logprobs
from penstock_kernels.base.sampling_params import DrawParams
from penstock_kernels.native.library import WORTH_THREADS, library, run

_DRAWN_BY = (
    *(torch.float32, torch.int32, torch.float32, torch.float32, torch.float32),
    torch.int64,
    torch.int64,
)


class _Logprobs(ctypes.Structure):
    """`Logprobs` of src/scores.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("logits", "token_ids", "logprobs", "finite")),
        *((name, ctypes.c_void_p) for name in ("top_ids", "top_logprobs")),
        *((name, ctypes.c_int64) for name in ("stride", "num_rows", "len", "num_top")),
        *((name, ctypes.c_int32) for name in ("chooses", "num_threads", "max_lanes")),
    )


class _Draw(ctypes.Structure):
    """`Draw` of src/scores.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("scores", "temperature", "top_k", "top_p", "min_p")),
        *((name, ctypes.c_void_p) for name in ("typical_p", "seeds", "positions", "token_ids")),
        *((name, ctypes.c_int64) for name in ("stride", "num_rows", "len")),
        *((name, ctypes.c_int32) for name in ("num_threads", "max_lanes")),
    )


def supports(scores: torch.Tensor, *_: object) -> bool:
    """Whether `token_logprobs` can take these, as the op has checked them."""
    return scores.numel() > 0 and library() is not None


def supports_draw(scores: torch.Tensor, params: DrawParams) -> bool:
    """Whether `draw` can take these, as the op has checked them."""
    return supports(scores) and tuple(column.dtype for column in params) == _DRAWN_BY


def token_logprobs(
    logits: torch.Tensor, token_ids: torch.Tensor | None, num_top: int, max_lanes: int = 0
) -> Logprobs:
    """The op in C. A row's bits do not depend on the number of rows. `max_lanes`: see `paged_attention`."""
    num_rows, vocab_size = logits.shape
    chooses = token_ids is None
    ids = torch.empty(num_rows, dtype=torch.int64) if token_ids is None else token_ids
    logprobs, finite = torch.empty(num_rows), torch.empty(num_rows, dtype=torch.bool)
    top_ids, top_logprobs = torch.empty(num_rows, num_top, dtype=torch.int64), torch.empty(num_rows, num_top)
    call = _Logprobs(
        logits.data_ptr(),
        ids.data_ptr(),
        logprobs.data_ptr(),
        finite.data_ptr(),
        top_ids.data_ptr(),
        top_logprobs.data_ptr(),
        logits.stride(0),
        num_rows,
        vocab_size,
        num_top,
        chooses,
        num_threads(logits),
        max_lanes,
    )
    found = Logprobs(ids, logprobs, finite, top_ids, top_logprobs)
    run("penstock_logprobs", call, logits, found, failure=lambda: _unknown(ids, vocab_size))
    return found


def most_likely(scores: torch.Tensor, max_lanes: int = 0) -> torch.Tensor:
    """The op in C. `max_lanes`: see `paged_attention`."""
    num_rows, vocab_size = scores.shape
    token_ids = torch.empty(num_rows, dtype=torch.int64)
    call = _Logprobs(
        logits=scores.data_ptr(),
        token_ids=token_ids.data_ptr(),
        stride=scores.stride(0),
        num_rows=num_rows,
        len=vocab_size,
        num_threads=num_threads(scores),
        max_lanes=max_lanes,
    )
    run("penstock_most_likely", call, scores, token_ids)
    return token_ids


def draw(scores: torch.Tensor, params: DrawParams, max_lanes: int = 0) -> torch.Tensor:
    """The op in C. A row's draw depends on that row alone. `max_lanes`: see `paged_attention`."""
    token_ids = torch.empty(scores.shape[0], dtype=torch.int64)
    call = _Draw(
        scores.data_ptr(),
        *(column.data_ptr() for column in params),
        token_ids.data_ptr(),
        scores.stride(0),
        *scores.shape,
        num_threads(scores),
        max_lanes,
    )
    run("penstock_draw", call, scores, params, token_ids, failure=_no_memory)
    return token_ids


def num_threads(scores: torch.Tensor) -> int:
    """How many threads score these rows. They share rows, not one row."""
    return torch.get_num_threads() if scores.numel() >= WORTH_THREADS and len(scores) > 1 else 1


def _unknown(token_ids: torch.Tensor, vocab_size: int) -> IndexError:
    row = int(((token_ids < 0) | (token_ids >= vocab_size)).nonzero()[0])
    return IndexError(f"token_logprobs: token {int(token_ids[row])} of row {row} is not below {vocab_size}")


def _no_memory() -> MemoryError:
    return MemoryError("no memory for the work of a draw")
