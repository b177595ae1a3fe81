"""Reads the inputs of a step of spans from the rows of its slots, in C: in PyTorch these are two dozen small ops."""

import ctypes

import torch

from penstock_kernels.base.results import FoundSpans
from penstock_kernels.native.library import library, run


class _Call(ctypes.Structure):
    """`Spans` of src/spans.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("slots", "starts", "lens", "tokens", "tables")),
        *((name, ctypes.c_void_p) for name in FoundSpans._fields),
        *((name, ctypes.c_int64) for name in ("token_stride", "table_stride", "num_spans", "num_tokens")),
        *((name, ctypes.c_int64) for name in ("num_blocks", "block_size", "spare")),
    )


def supports(*_: object) -> bool:
    """Whether `find_spans` is compiled; then it takes all that the op lets through."""
    return library() is not None


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
    """The op in C."""
    num_spans, num_blocks = len(slots), block_table.shape[1]
    token_ids, positions, cache_positions = (torch.empty(num_tokens, dtype=torch.int64) for _ in range(3))
    found = FoundSpans(
        token_ids,
        positions,
        cache_positions,
        torch.empty(num_spans + 1, dtype=torch.int32),
        torch.empty(num_spans, dtype=torch.int32),
        torch.empty(num_spans, num_blocks, dtype=torch.int32),
    )
    given = (slots, starts, lens, tokens, block_table)
    call = _Call(
        *(tensor.data_ptr() for tensor in (*given, *found)),
        tokens.stride(0),
        block_table.stride(0),
        num_spans,
        num_tokens,
        num_blocks,
        block_size,
        spare,
    )
    run("penstock_find_spans", call, given, found)
    return found
