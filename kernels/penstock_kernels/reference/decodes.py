"""What a decode step reads from the rows of its slots."""

import torch

from penstock_kernels.base.results import Decodes


def find_decodes(
    slots: torch.Tensor,
    positions: torch.Tensor,
    tokens: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    spare: int,
) -> Decodes:
    block_tables = block_table.index_select(0, slots)
    blocks = block_tables.gather(1, (positions // block_size).unsqueeze(1)).squeeze(1).long()
    return Decodes(
        tokens[slots, positions].long(),
        blocks * block_size + positions % block_size,
        torch.where(slots == spare, 0, positions + 1).int(),
        block_tables,
    )
