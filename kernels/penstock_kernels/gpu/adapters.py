"""Low-rank adapters: one launch shrinks every row by its own adapter's matrix, one expands it into the outputs.

Which adapter a row has, and where its matrices are, are data on the device, so that a captured launch serves any. Ranks
are read there, too: a row waits for no rank but its own.
"""

import torch
import triton
import triton.language as tl

from penstock_kernels.base.adapter_table import NUM_WORDS, AdapterTable

# Numbers of a row that a program shrinks to, and what it reads of each at a time: a rank of 16 keeps 4 programs busy
# with a row. Unmeasured.
_BLOCK_RANK, _BLOCK_LEN = 4, 512
# Columns of a program that expands. Unmeasured.
_BLOCK_COLUMNS = 128


@triton.jit
def _word(words_ptr, number, which: tl.constexpr, NUM_WORDS: tl.constexpr):
    return tl.load(words_ptr + number * NUM_WORDS + which)


@triton.jit(
    do_not_specialize=["stride_x", "stride_shrunk"], do_not_specialize_on_alignment=["x_ptr", "numbers_ptr"]
)
def _shrink_kernel(
    x_ptr,
    numbers_ptr,
    words_ptr,
    shrunk_ptr,
    stride_x,
    stride_shrunk,
    LEN: tl.constexpr,
    NUM_WORDS: tl.constexpr,
    BLOCK_RANK: tl.constexpr,
    BLOCK_LEN: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    number = tl.load(numbers_ptr + row)
    if number < 0:
        return
    rank = _word(words_ptr, number, 5, NUM_WORDS)
    first = tl.program_id(1) * BLOCK_RANK
    if first >= rank:
        return
    down_ptr = _word(words_ptr, number, 0, NUM_WORDS).to(tl.pointer_type(x_ptr.dtype.element_ty))
    ranks = first + tl.arange(0, BLOCK_RANK).to(tl.int64)
    sums = tl.zeros((BLOCK_RANK, BLOCK_LEN), tl.float32)
    for start in range(0, LEN, BLOCK_LEN):
        columns = start + tl.arange(0, BLOCK_LEN)
        x = tl.load(x_ptr + row * stride_x + columns, mask=columns < LEN, other=0.0).to(tl.float32)
        mask = (ranks < rank)[:, None] & (columns < LEN)[None, :]
        down = tl.load(down_ptr + ranks[:, None] * LEN + columns[None, :], mask=mask, other=0.0)
        sums += down.to(tl.float32) * x[None, :]
    tl.store(shrunk_ptr + row * stride_shrunk + ranks, tl.sum(sums, axis=1), mask=ranks < rank)


@triton.jit(do_not_specialize=["stride_shrunk"], do_not_specialize_on_alignment=["numbers_ptr"])
def _expand_kernel(
    output_ptr,
    numbers_ptr,
    words_ptr,
    shrunk_ptr,
    stride_shrunk,
    NUM_COLUMNS: tl.constexpr,
    NUM_WORDS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    number = tl.load(numbers_ptr + row)
    if number < 0:
        return
    first_ptr = _word(words_ptr, number, 2, NUM_WORDS).to(tl.pointer_type(tl.int32))
    if first_ptr.to(tl.int64) == 0:
        return
    up_ptr = _word(words_ptr, number, 1, NUM_WORDS).to(tl.pointer_type(output_ptr.dtype.element_ty))
    factor_ptr = _word(words_ptr, number, 3, NUM_WORDS).to(tl.pointer_type(tl.float32))
    addend_ptr = _word(words_ptr, number, 4, NUM_WORDS).to(tl.pointer_type(tl.float32))
    rank, width = _word(words_ptr, number, 5, NUM_WORDS), _word(words_ptr, number, 6, NUM_WORDS)
    columns = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    mask = columns < NUM_COLUMNS
    first = tl.load(first_ptr + columns, mask=mask, other=-1)
    mask &= first >= 0
    sums = tl.zeros((BLOCK_COLUMNS,), tl.float32)
    for k in range(width):
        up = tl.load(up_ptr + k * NUM_COLUMNS + columns, mask=mask, other=0.0).to(tl.float32)
        # A column of a smaller rank has zeros in `up` for what is not its own.
        at = first + k
        sums += up * tl.load(shrunk_ptr + row * stride_shrunk + at, mask=mask & (at < rank), other=0.0)
    output = tl.load(output_ptr + row * NUM_COLUMNS + columns, mask=mask, other=0.0).to(tl.float32)
    if addend_ptr.to(tl.int64) != 0:
        sums += tl.load(addend_ptr + columns, mask=mask, other=0.0)
    if factor_ptr.to(tl.int64) != 0:
        output *= tl.load(factor_ptr + columns, mask=mask, other=0.0)
    result = (output + sums).to(output_ptr.dtype.element_ty)
    tl.store(output_ptr + row * NUM_COLUMNS + columns, result, mask=mask)


def add_adapters(
    output: torch.Tensor, x: torch.Tensor, numbers: torch.Tensor, adapters: AdapterTable
) -> torch.Tensor:
    num_rows, num_columns = output.shape
    if output.numel() == 0:
        return output
    max_rank = max(adapters.max_rank, 1)
    shrunk = torch.empty(num_rows, max_rank, dtype=torch.float32, device=x.device)
    _shrink_kernel[(num_rows, triton.cdiv(max_rank, _BLOCK_RANK))](
        x,
        numbers,
        adapters.words,
        shrunk,
        x.stride(0),
        shrunk.stride(0),
        LEN=x.shape[1],
        NUM_WORDS=NUM_WORDS,
        BLOCK_RANK=_BLOCK_RANK,
        BLOCK_LEN=min(_BLOCK_LEN, triton.next_power_of_2(x.shape[1])),
        num_warps=4,
    )
    _expand_kernel[(num_rows, triton.cdiv(num_columns, _BLOCK_COLUMNS))](
        output,
        numbers,
        adapters.words,
        shrunk,
        shrunk.stride(0),
        NUM_COLUMNS=num_columns,
        NUM_WORDS=NUM_WORDS,
        BLOCK_COLUMNS=_BLOCK_COLUMNS,
        num_warps=4,
    )
    return output
