"""Sums over ranks in one shot: every rank reads the shares of all from their memory, adds them in the order of ranks,
and does what follows. `base/peers.py` has the protocol.

A program has a row, and waits for the same row of the other ranks alone. There are no more rows than multiprocessors,
so programs that wait keep none from running that others wait for.
"""

import torch
import triton
import triton.language as tl

from penstock_kernels.base.peers import Peers
from penstock_kernels.gpu.chain import begin, chained
from penstock_kernels.gpu.norm import num_warps_of_row


@triton.jit
def _meet(address_ptr, row, number, own_rank, SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Tell all ranks that this one's row is there, and wait for theirs. What a rank wrote before, all see behind it."""
    ranks = tl.arange(0, BLOCK_SIZE)
    is_rank = ranks < SIZE
    pages = tl.load(address_ptr + ranks, mask=is_rank, other=0)
    theirs = (pages + (row * SIZE + own_rank) * 8).to(tl.pointer_type(tl.int64))
    mine = (tl.load(address_ptr + own_rank) + (row * SIZE + ranks) * 8).to(tl.pointer_type(tl.int64))
    numbers = tl.zeros([BLOCK_SIZE], tl.int64) + number
    # The flag of one thread speaks for what all threads of the program wrote.
    tl.debug_barrier()
    tl.atomic_xchg(theirs, numbers, mask=is_rank, sem="release", scope="sys")
    # A loop that carries a block, of which nothing is used behind it, crashes the compiler: a number is carried.
    earliest = number - 1
    while earliest < number:
        seen = tl.atomic_add(mine, numbers * 0, mask=is_rank, sem="acquire", scope="sys")
        earliest = tl.min(tl.where(is_rank, seen, numbers), axis=0)
    tl.debug_barrier()


@triton.jit(do_not_specialize=["own_rank"])
def _all_reduce_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    address_ptr,
    round_ptr,
    own_rank,
    stride_x,
    eps,
    weight_offset,
    SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    FIRST_ROW: tl.constexpr,
    MAX_ROWS: tl.constexpr,
    ROW_BYTES: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    HAS_NORM: tl.constexpr,
    CHAINED: tl.constexpr,
):
    begin(CHAINED)
    kind: tl.constexpr = x_ptr.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK_DIM)
    mask = columns < DIM
    number = tl.load(round_ptr + row) + 1
    place = FIRST_ROW + ((number % 2) * MAX_ROWS + row) * ROW_BYTES
    x = tl.load(x_ptr + row * stride_x + columns, mask=mask, other=0.0)
    own = tl.multiple_of((tl.load(address_ptr + own_rank) + place).to(tl.pointer_type(kind)), 16)
    tl.store(own + columns, x, mask=mask)
    _meet(address_ptr, row, number, own_rank, SIZE, BLOCK_SIZE)
    total = tl.zeros([BLOCK_DIM], tl.float32)
    for rank in tl.static_range(SIZE):
        share = tl.multiple_of((tl.load(address_ptr + rank) + place).to(tl.pointer_type(kind)), 16)
        total += tl.load(share + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(round_ptr + row, number)
    # Rounded as it would be between two ops.
    total = total.to(kind).to(tl.float32)
    if HAS_NORM:
        residual_ptrs = residual_ptr + row * DIM + columns
        rounded = (total + tl.load(residual_ptrs, mask=mask, other=0.0).to(tl.float32)).to(kind)
        tl.store(residual_ptrs, rounded, mask=mask)
        total = rounded.to(tl.float32)
        weight = tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32) + weight_offset
        total *= tl.rsqrt(tl.sum(total * total, axis=0) / DIM + eps) * weight
    tl.store(out_ptr + row * DIM + columns, total.to(kind), mask=mask)


def all_reduce(x: torch.Tensor, peers: Peers) -> torch.Tensor:
    assert x.is_contiguous(), "the op has checked"
    return _launch(x, x, x, x, 0.0, 0.0, peers, has_norm=False)


def all_reduce_add_rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor,
    weight_offset: float,
    peers: Peers,
) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return _launch(x, out, residual, weight, eps, weight_offset, peers, has_norm=True)


def _launch(
    x: torch.Tensor,
    out: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    weight_offset: float,
    peers: Peers,
    has_norm: bool,
) -> torch.Tensor:
    num_rows, dim = x.shape
    block_dim = triton.next_power_of_2(dim)
    _all_reduce_kernel[(num_rows,)](
        x,
        residual,
        weight,
        out,
        peers.addresses,
        peers.rounds,
        peers.rank,
        x.stride(0),
        float(eps),
        float(weight_offset),
        SIZE=peers.size,
        BLOCK_SIZE=max(2, triton.next_power_of_2(peers.size)),
        FIRST_ROW=peers.first_row,
        MAX_ROWS=peers.max_rows,
        ROW_BYTES=peers.row_bytes,
        DIM=dim,
        BLOCK_DIM=block_dim,
        HAS_NORM=has_norm,
        num_warps=num_warps_of_row(block_dim),
        **chained(x.device),
    )
    return out
