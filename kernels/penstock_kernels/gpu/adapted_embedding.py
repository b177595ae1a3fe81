"""Changes of embeddings by adapters: a program for a part of each token's row, which returns where nothing is done.

Which adapter a token has, and where its rows are, are data on the device, as in `adapters`.
"""

import torch
import triton
import triton.language as tl

from penstock_kernels.base.adapter_rows import AdapterRows
from penstock_kernels.base.adapter_table import NUM_WORDS, EmbeddingTable

# Columns of a program. Unmeasured.
_BLOCK_DIM = 256


@triton.jit(do_not_specialize=["first"], do_not_specialize_on_alignment=["ids_ptr", "numbers_ptr"])
def _adapt_embedding_kernel(
    output_ptr,
    ids_ptr,
    numbers_ptr,
    words_ptr,
    first,
    DIM: tl.constexpr,
    NUM_WORDS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    number = tl.load(numbers_ptr + token)
    if number < 0:
        return
    entry_ptr = words_ptr + number * NUM_WORDS
    rows_ptr = tl.load(entry_ptr).to(tl.pointer_type(output_ptr.dtype.element_ty))
    local = tl.load(ids_ptr + token) - first
    # An entry without rows has no tokens.
    if (local < 0) | (local >= tl.load(entry_ptr + 3)):
        return
    row = tl.load(tl.load(entry_ptr + 1).to(tl.pointer_type(tl.int32)) + local).to(tl.int64)
    if row < 0:
        return
    up_ptr = tl.load(entry_ptr + 2).to(tl.pointer_type(output_ptr.dtype.element_ty))
    width = tl.load(entry_ptr + 4)
    columns = tl.program_id(1) * BLOCK_DIM + tl.arange(0, BLOCK_DIM)
    mask = columns < DIM
    if up_ptr.to(tl.int64) == 0:
        result = tl.load(rows_ptr + row * DIM + columns, mask=mask, other=0.0)
        tl.store(output_ptr + token * DIM + columns, result, mask=mask)
    else:
        sums = tl.load(output_ptr + token * DIM + columns, mask=mask, other=0.0).to(tl.float32)
        for k in range(width):
            up = tl.load(up_ptr + k * DIM + columns, mask=mask, other=0.0).to(tl.float32)
            sums += tl.load(rows_ptr + row * width + k).to(tl.float32) * up
        tl.store(output_ptr + token * DIM + columns, sums.to(output_ptr.dtype.element_ty), mask=mask)


def adapt_embedding(
    output: torch.Tensor, token_ids: torch.Tensor, rows: AdapterRows, adapters: EmbeddingTable, first: int
) -> torch.Tensor:
    num_tokens, dim = output.shape
    if num_tokens:
        _adapt_embedding_kernel[(num_tokens, triton.cdiv(dim, _BLOCK_DIM))](
            output,
            token_ids,
            rows.numbers,
            adapters.words,
            first,
            DIM=dim,
            NUM_WORDS=NUM_WORDS,
            BLOCK_DIM=_BLOCK_DIM,
            num_warps=4,
        )
    return output
