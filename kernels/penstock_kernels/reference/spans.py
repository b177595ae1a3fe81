"""Reads the inputs of a step of spans from the rows of its slots."""

import torch

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
    ends = lens.cumsum(0)
    rows = torch.arange(num_tokens, device=slots.device)
    # Rows behind the last span belong to one more, of the spare slot.
    of_row = torch.searchsorted(ends, rows, right=True)
    filler = slots.new_zeros(1)
    row_slots = torch.cat((slots, filler + spare))[of_row]
    begins = torch.cat((starts - (ends - lens), filler))
    positions = torch.where(of_row < len(slots), rows + begins[of_row], 0)
    blocks = block_table[row_slots, positions // block_size].long()
    return FoundSpans(
        tokens[row_slots, positions].long(),
        positions,
        blocks * block_size + positions % block_size,
        torch.cat((filler, ends)).int(),
        torch.where(lens > 0, starts + lens, 0).int(),
        block_table.index_select(0, slots),
    )
