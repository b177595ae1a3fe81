"""Adapters of linear layers and of embeddings: each row of a step may use another one, or none."""

import torch

from penstock_kernels import table
from penstock_kernels.base.adapter_rows import AdapterRows
from penstock_kernels.base.adapter_table import AdapterTable, EmbeddingTable
from penstock_kernels.base.checks import require, require_same_dtype


def add_adapters(
    output: torch.Tensor, x: torch.Tensor, rows: AdapterRows, adapters: AdapterTable
) -> torch.Tensor:
    """Add to `output`, what a layer made of `x`, what the adapter of each row adds to the layer; in place.

    output: [num_rows, num_columns] contiguous; x: [num_rows, len]. A row's result has the same bits whatever the
    other rows are. Sums are in 32 bits.
    """
    op = "add_adapters"
    require_same_dtype(op, output=output, x=x)
    require(
        output.dim() == 2 and output.is_contiguous() and x.dim() == 2 and x.stride(1) == 1,
        lambda: (
            f"{op}: output {tuple(output.shape)} and x {tuple(x.shape)} must be matrices of contiguous rows"
        ),
    )
    require(
        rows.numbers.shape == output.shape[:1] == x.shape[:1] and rows.numbers.dtype == torch.int64,
        lambda: f"{op}: one int64 number for each row, not {rows.numbers.dtype} {tuple(rows.numbers.shape)}",
    )
    return table.add_adapters(output, x, rows, adapters)


def adapt_embedding(
    output: torch.Tensor, token_ids: torch.Tensor, rows: AdapterRows, adapters: EmbeddingTable, first: int
) -> torch.Tensor:
    """Do to `output`, the embeddings of tokens, what the adapter of each row does to its token; in place.

    output: [num_tokens, dim] contiguous; token_ids: [num_tokens] int64, of which those from `first` on are in the
    table. Sums are in 32 bits.
    """
    op = "adapt_embedding"
    require(
        output.dim() == 2 and output.is_contiguous(),
        lambda: f"{op}: output {tuple(output.shape)} must be a matrix of contiguous rows",
    )
    for name, it in (("token_ids", token_ids), ("numbers", rows.numbers)):
        require(
            it.shape == output.shape[:1] and it.dtype == torch.int64 and it.is_contiguous(),
            lambda name=name, it=it: (
                f"{op}: one int64 of {name} for each row, not {it.dtype} {tuple(it.shape)}"
            ),  # type: ignore[misc]
        )
    return table.adapt_embedding(output, token_ids, rows, adapters, first)
