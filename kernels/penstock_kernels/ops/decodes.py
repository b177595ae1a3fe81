"""Reads the inputs of a decode step from the rows of its slots, on the device."""

import torch

from penstock_kernels import table
from penstock_kernels.base.checks import require
from penstock_kernels.base.results import Decodes


def find_decodes(
    slots: torch.Tensor,
    positions: torch.Tensor,
    tokens: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    spare: int,
    max_span_len: int = 1,
) -> Decodes:
    """The tokens of `slots` at `positions`, and where their keys and values are stored.

    slots, positions: [num_rows] int64, contiguous, in range: the caller checked that, the op does not. tokens,
    block_table: [num_slots + 1, ...] int32, rows of any stride. The slot `spare` fills up a step; it has no context.
    `max_span_len`: so many rows of one slot, at positions that follow each other, are one span, so that attention reads
    their context once; where it is 1 every row is a span of its own, to the same end.
    """
    op = "find_decodes"
    require(
        slots.dtype == positions.dtype == torch.int64 and slots.shape == positions.shape and slots.dim() == 1,
        lambda: f"{op}: slots and positions must be int64 and one row each",
    )
    require(
        slots.is_contiguous() and positions.is_contiguous(),
        lambda: f"{op}: slots and positions must be contiguous",
    )
    require(
        tokens.dtype == block_table.dtype == torch.int32 and tokens.stride(1) == block_table.stride(1) == 1,
        lambda: f"{op}: tokens and block_table must be int32, the numbers of a row contiguous",
    )
    return table.find_decodes(slots, positions, tokens, block_table, block_size, spare, max_span_len)
