"""What a step in which every span is one token needs of its slots, found on the device."""

from typing import NamedTuple

import torch

from penstock_kernels import reference
from penstock_kernels.checks import require
from penstock_kernels.native import decodes as native


class Decodes(NamedTuple):
    """One row for every slot."""

    token_ids: torch.Tensor  # [num_rows] int64
    cache_positions: torch.Tensor  # [num_rows] int64, `block * block_size + offset`
    context_lens: torch.Tensor  # [num_rows] int32, the token included
    block_tables: torch.Tensor  # [num_rows, max_blocks] int32


def find_decodes(
    slots: torch.Tensor,
    positions: torch.Tensor,
    tokens: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    spare: int,
) -> Decodes:
    """The tokens of `slots` at `positions`, and where their keys and values go.

    slots, positions: [num_rows] int64, contiguous, in range: the caller checked that, the op does not. tokens,
    block_table: [num_slots + 1, ...] int32, rows of any stride. The slot `spare` pads a step and has no context.
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
    find = native.find_decodes if native.supports(slots) else reference.find_decodes
    return Decodes(*find(slots, positions, tokens, block_table, block_size, spare))
