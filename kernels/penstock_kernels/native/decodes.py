"""Reads the inputs of a step of decodes from the rows of its slots, in C: in PyTorch these are a dozen small ops."""

import ctypes

import torch

from penstock_kernels.base.results import Decodes
from penstock_kernels.native.library import library, run


class _Call(ctypes.Structure):
    """`Decodes` of src/decodes.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("slots", "positions", "tokens", "tables")),
        *(
            (name, ctypes.c_void_p)
            for name in ("token_ids", "cache_positions", "context_lens", "block_tables", "query_starts")
        ),
        *((name, ctypes.c_int64) for name in ("token_stride", "table_stride", "num_rows", "num_blocks")),
        *((name, ctypes.c_int64) for name in ("block_size", "spare", "max_span_len")),
    )


def supports(*_: object) -> bool:
    """Whether `find_decodes` is compiled; then it takes all that the op lets through."""
    return library() is not None


def find_decodes(
    slots: torch.Tensor,
    positions: torch.Tensor,
    tokens: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    spare: int,
    max_span_len: int = 1,
) -> Decodes:
    """The op in C."""
    num_rows, num_blocks = len(slots), block_table.shape[1]
    token_ids = torch.empty(num_rows, dtype=torch.int64)
    cache_positions = torch.empty(num_rows, dtype=torch.int64)
    context_lens = torch.empty(num_rows, dtype=torch.int32)
    block_tables = torch.empty(num_rows, num_blocks, dtype=torch.int32)
    query_starts = torch.empty(num_rows + 1, dtype=torch.int32)
    found = Decodes(
        token_ids, cache_positions, context_lens, block_tables, query_starts if max_span_len > 1 else None
    )
    given = (slots, positions, tokens, block_table, *found[:4], query_starts)
    call = _Call(
        *(tensor.data_ptr() for tensor in given),
        tokens.stride(0),
        block_table.stride(0),
        num_rows,
        num_blocks,
        block_size,
        spare,
        max_span_len,
    )
    run("penstock_find_decodes", call, given)
    return found
