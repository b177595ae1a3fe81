"""Reads the inputs of a decode step from the rows of its slots."""

import torch

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
    block_tables = block_table.index_select(0, slots)
    blocks = block_tables.gather(1, (positions // block_size).unsqueeze(1)).squeeze(1).long()
    found = Decodes(
        tokens[slots, positions].long(),
        blocks * block_size + positions % block_size,
        torch.where(slots == spare, 0, positions + 1).int(),
        block_tables,
        None,
    )
    return _joined(found, slots, positions, max_span_len) if max_span_len > 1 else found


def _joined(found: Decodes, slots: torch.Tensor, positions: torch.Tensor, max_span_len: int) -> Decodes:
    """Joins rows to fewer spans; no shape depends on the numbers."""
    num_rows = len(slots)
    numbers = torch.arange(num_rows, device=slots.device)
    follows = torch.zeros(num_rows, dtype=torch.bool, device=slots.device)
    follows[1:] = (slots[1:] == slots[:-1]) & (positions[1:] == positions[:-1] + 1)
    first_of_run = torch.where(follows, 0, numbers).cummax(0).values
    is_first = (numbers - first_of_run) % max_span_len == 0
    span_of = is_first.cumsum(0) - 1
    starts = torch.full((num_rows + 1,), num_rows, device=slots.device)
    starts.scatter_reduce_(0, span_of, numbers, "amin")
    # A span has the context of its last row; those without rows have that of none.
    last = (starts[1:] - 1).clamp(min=0)
    contexts = torch.where(starts[:-1] < num_rows, found.context_lens[last], 0).int()
    return found._replace(
        context_lens=contexts,
        block_tables=found.block_tables.index_select(0, last),
        query_starts=starts.int(),
    )
