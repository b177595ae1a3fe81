"""Writes into the paged cache that are not part of the rotary pass: plain stores, and copies of whole blocks."""

import torch
import triton
import triton.language as tl

from penstock_kernels.base.destination import Destination

# 16-byte words of a program of the block copy. Unmeasured.
_COPY_WORDS = 512


@triton.jit
def _store_scaled(cache_ptrs, numbers, inverse_scale, mask):
    """Unchanged into a cache of the same type, else scaled and converted."""
    if cache_ptrs.dtype.element_ty == numbers.dtype:
        tl.store(cache_ptrs, numbers, mask=mask)
    else:
        scaled = numbers.to(tl.float32) * inverse_scale
        tl.store(cache_ptrs, scaled.to(cache_ptrs.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize_on_alignment=["cache_position_ptr"])
def _store_kv_kernel(
    key_ptr,
    value_ptr,
    key_cache_ptr,
    value_cache_ptr,
    cache_position_ptr,
    stride_key_token,
    stride_key_head,
    stride_value_token,
    stride_value_head,
    inverse_key_scale,
    inverse_value_scale,
    NUM_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    heads = tl.arange(0, BLOCK_HEADS)
    columns = tl.arange(0, BLOCK_DIM)
    mask = (heads < NUM_HEADS)[:, None] & (columns < DIM)[None, :]
    key_offsets = token * stride_key_token + heads[:, None] * stride_key_head + columns[None, :]
    value_offsets = token * stride_value_token + heads[:, None] * stride_value_head + columns[None, :]
    target = tl.load(cache_position_ptr + token) * (NUM_HEADS * DIM) + heads[:, None] * DIM + columns[None, :]
    _store_scaled(
        key_cache_ptr + target, tl.load(key_ptr + key_offsets, mask=mask, other=0.0), inverse_key_scale, mask
    )
    value = tl.load(value_ptr + value_offsets, mask=mask, other=0.0)
    _store_scaled(value_cache_ptr + target, value, inverse_value_scale, mask)


def store_kv(key: torch.Tensor, value: torch.Tensor, target: Destination) -> None:
    num_tokens, num_heads, dim = key.shape
    if num_tokens == 0:
        return
    _store_kv_kernel[(num_tokens,)](
        key,
        value,
        target.key_cache,
        target.value_cache,
        target.cache_positions,
        *key.stride()[:2],
        *value.stride()[:2],
        1 / target.key_scale,
        1 / target.value_scale,
        NUM_HEADS=num_heads,
        DIM=dim,
        BLOCK_HEADS=triton.next_power_of_2(num_heads),
        BLOCK_DIM=triton.next_power_of_2(dim),
        num_warps=4,
    )


@triton.jit(do_not_specialize=["num_blocks"], do_not_specialize_on_alignment=["source_ptr", "target_ptr"])
def _copy_blocks_kernel(pool_ptr, source_ptr, target_ptr, num_blocks, num_words, BLOCK: tl.constexpr):
    """One plane of a block. Places are multiples of its words, however many blocks there are."""
    copy, first = tl.program_id(0), tl.program_id(1).to(tl.int64) * num_blocks
    words = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    mask = words < num_words
    source = (first + tl.load(source_ptr + copy)) * num_words
    target = (first + tl.load(target_ptr + copy)) * num_words
    tl.store(pool_ptr + target + words, tl.load(pool_ptr + source + words, mask=mask, other=0), mask=mask)


def copy_blocks(pool: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
    if pool.numel() == 0:  # of a model without attention
        return
    words = _as_words(pool)
    num_planes, num_blocks, num_words = words.shape
    block = 2 * _COPY_WORDS
    _copy_blocks_kernel[(sources.shape[0], num_planes, triton.cdiv(num_words, block))](
        words, sources, targets, num_blocks, num_words, BLOCK=block, num_warps=4
    )


def _as_words(pool: torch.Tensor) -> torch.Tensor:
    """A view [num_planes, num_blocks, words of a block] of integers: of 8 bytes where blocks are a multiple of that."""
    planes = pool.view(pool.shape[0] * pool.shape[1], pool.shape[2], -1).view(torch.uint8)
    return planes.view(torch.int64) if planes.shape[2] % 8 == 0 else planes
