"""Adapters by PyTorch: the rows of one adapter after the other."""

import torch
import torch.nn.functional as F

from penstock_kernels.base.adapter_rows import AdapterRows
from penstock_kernels.base.adapter_table import AdapterTable, AdapterWeights, EmbeddingTable
from penstock_kernels.reference.linear import INVARIANT_ROWS


def add_adapters(
    output: torch.Tensor, x: torch.Tensor, rows: AdapterRows, adapters: AdapterTable
) -> torch.Tensor:
    numbers = rows.numbers
    for number in set(numbers.tolist()):
        weights = adapters.entries[number] if number >= 0 else None
        if weights is not None:
            mine = (numbers == number).nonzero().squeeze(1)
            output[mine] = _adapted(output[mine].float(), x[mine].float(), weights).to(output.dtype)
    return output


def _adapted(output: torch.Tensor, x: torch.Tensor, weights: AdapterWeights) -> torch.Tensor:
    num_rows, width = x.shape[0], weights.up.shape[0]
    # A product of few rows has other bits than one of many.
    padded = F.pad(x, (0, 0, 0, -num_rows % INVARIANT_ROWS))
    shrunk = F.pad(F.linear(padded, weights.down.float()), (0, width))
    factor, addend = weights.factor, weights.addend
    for first in set(weights.first.tolist()):
        if first < 0:
            continue
        columns = (weights.first == first).nonzero().squeeze(1)
        added = (shrunk[:, first : first + width] @ weights.up[:, columns].float())[:num_rows]
        before = output[:, columns] if factor is None else output[:, columns] * factor[columns]
        output[:, columns] = before + added if addend is None else before + (added + addend[columns])
    return output


def adapt_embedding(
    output: torch.Tensor, token_ids: torch.Tensor, rows: AdapterRows, adapters: EmbeddingTable, first: int
) -> torch.Tensor:
    numbers = rows.numbers
    for number in set(numbers.tolist()):
        weights = adapters.entries[number] if number >= 0 else None
        if weights is None:
            continue
        tokens = token_ids - first
        of_rank = (numbers == number) & (tokens >= 0) & (tokens < len(weights.row_of))
        if not of_rank.any():
            continue
        found = weights.row_of[torch.where(of_rank, tokens, 0)]
        mine = (of_rank & (found >= 0)).nonzero().squeeze(1)
        own = weights.rows[found[mine]]
        if weights.up is not None:
            own = (output[mine].float() + own.float() @ weights.up.float()).to(output.dtype)
        output[mine] = own
    return output
