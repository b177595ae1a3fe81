"""The best positions of a context for each query in C: their scores, and then which are the best."""

import ctypes
from functools import cache as remembered

import torch

from penstock_kernels.base.seen_rows import SeenRows
from penstock_kernels.native.library import DTYPES, WORTH_THREADS, library, run

# Scores of a row are written by whole tiles of so many.
_TILE_LEN = 64


class _Call(ctypes.Structure):
    """`Index` of src/index.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("query", "weights", "keys", "tables", "spans", "lens")),
        *((name, ctypes.c_void_p) for name in ("scores", "chosen")),
        *((name, ctypes.c_int64) for name in ("table_stride", "num_rows", "width")),
        *((name, ctypes.c_int32) for name in ("num_heads", "dim", "block_size", "top_k", "dtype")),
        *((name, ctypes.c_int32) for name in ("num_threads", "max_lanes")),
        ("scale", ctypes.c_float),
    )


@remembered
def can_choose(dim: int) -> bool:
    """Whether it is compiled, for keys of so many numbers."""
    compiled = library()
    return compiled is not None and bool(compiled.penstock_can_choose_positions(dim))


def supports(query: torch.Tensor, *_: object) -> bool:
    """Whether `choose_positions` can take these, as the op has checked them."""
    return query.dtype in DTYPES and can_choose(query.shape[2])


def choose_positions(
    query: torch.Tensor,
    weights: torch.Tensor,
    cache: torch.Tensor,
    tables: torch.Tensor,
    seen: SeenRows,
    longest: int,
    chosen: torch.Tensor,
    max_lanes: int = 0,
) -> None:
    """The reference in C. A row's bits do not depend on the other rows. `max_lanes`: see `paged_attention`."""
    wide, num_tiles = query.float(), -(-longest // _TILE_LEN)
    scores = torch.empty(len(query), num_tiles * _TILE_LEN, dtype=torch.float32)
    tables = tables if tables.stride(1) == 1 else tables.contiguous()
    call = _Call(
        *(tensor.data_ptr() for tensor in (wide, weights, cache, tables, *seen, scores, chosen)),
        tables.stride(0),
        *scores.shape,
        *query.shape[1:],
        cache.shape[1],
        chosen.shape[1],
        DTYPES[cache.dtype],
        torch.get_num_threads() if scores.numel() * query.shape[1] >= WORTH_THREADS else 1,
        max_lanes,
        query.shape[2] ** -0.5,
    )
    run("penstock_choose_positions", call, wide, weights, cache, tables, seen, scores, chosen)
