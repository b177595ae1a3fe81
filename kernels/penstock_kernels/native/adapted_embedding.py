"""Changes of embeddings by adapters in C: each token reads the rows of its own adapter."""

import ctypes

import torch

from penstock_kernels.base.adapter_rows import AdapterRows
from penstock_kernels.base.adapter_table import EmbeddingTable
from penstock_kernels.native.library import DTYPES, WORTH_THREADS, library, run


class _Call(ctypes.Structure):
    """`AdaptEmbedding` of src/adapted_embedding.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("output", "ids", "numbers", "table")),
        *((name, ctypes.c_int64) for name in ("num_tokens", "dim", "first")),
        *((name, ctypes.c_int32) for name in ("dtype", "num_threads")),
    )


def supports(output: torch.Tensor, *_: object) -> bool:
    """Whether `adapt_embedding` can take these, as the op has checked them."""
    return output.dtype in DTYPES and library() is not None


def adapt_embedding(
    output: torch.Tensor, token_ids: torch.Tensor, rows: AdapterRows, adapters: EmbeddingTable, first: int
) -> torch.Tensor:
    """The op in C."""
    call = _Call(
        output.data_ptr(),
        token_ids.data_ptr(),
        rows.numbers.data_ptr(),
        adapters.words.data_ptr(),
        *output.shape,
        first,
        DTYPES[output.dtype],
        torch.get_num_threads() if output.numel() >= WORTH_THREADS else 1,
    )
    run("penstock_adapt_embedding", call, output, token_ids, rows, adapters)
    return output
