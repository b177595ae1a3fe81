"""Reads the inputs of a step of spans of any lengths from the rows of its slots, on the device."""

import torch

from penstock_kernels import table
from penstock_kernels.base.checks import require
from penstock_kernels.base.results import FoundSpans


def find_spans(
    slots: torch.Tensor,
    starts: torch.Tensor,
    lens: torch.Tensor,
    num_tokens: int,
    tokens: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    spare: int,
) -> FoundSpans:
    """The tokens of spans, `lens` of them of each of the `slots` from `starts` on, and where their keys are stored.

    slots, starts, lens: [num_spans] int64, contiguous, in range: the caller checked that, the op does not. Their tokens
    are the first of `num_tokens` rows; those that are left are of the slot `spare`, at position 0. A span may have no
    tokens. tokens, block_table: [num_slots + 1, ...] int32, rows of any stride.
    """
    op = "find_spans"
    given = (slots, starts, lens)
    require(
        all(it.dtype == torch.int64 and it.dim() == 1 and it.shape == slots.shape for it in given),
        lambda: f"{op}: slots, starts and lens must be int64 and one row each",
    )
    require(
        len(slots) > 0 and all(it.is_contiguous() for it in given),
        lambda: f"{op}: slots, starts and lens must be contiguous, and some",
    )
    require(
        tokens.dtype == block_table.dtype == torch.int32 and tokens.stride(1) == block_table.stride(1) == 1,
        lambda: f"{op}: tokens and block_table must be int32, the numbers of a row contiguous",
    )
    return table.find_spans(slots, starts, lens, num_tokens, tokens, block_table, block_size, spare)
