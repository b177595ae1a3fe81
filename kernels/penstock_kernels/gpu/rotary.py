"""Everything between the fused query-key-value projection and attention, in one pass over it: norm of query and key
heads, rotation, and the write of keys and values into the paged cache."""

import torch
import triton
import triton.language as tl

from penstock_kernels.base.destination import Destination
from penstock_kernels.base.head_norm import NormOfHeads
from penstock_kernels.gpu.chain import begin, chained

# Tokens of a program; a program does one head. Unmeasured.
_BLOCK_TOKENS = 8


@triton.jit
def _load_part(x_ptr, starts, tokens_mask, first, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    mask = tokens_mask[:, None] & (columns < SIZE)[None, :]
    return tl.load(x_ptr + starts[:, None] + (first + columns)[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _store_part(out_ptr, starts, tokens_mask, part, first, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    mask = tokens_mask[:, None] & (columns < SIZE)[None, :]
    out_ptrs = out_ptr + starts[:, None] + (first + columns)[None, :]
    tl.store(out_ptrs, part.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _store_head(out_ptr, starts, tokens_mask, left, right, tail, scale, HALF: tl.constexpr, TAIL: tl.constexpr,
                BLOCK_HALF: tl.constexpr, BLOCK_TAIL: tl.constexpr):  # fmt: skip
    _store_part(out_ptr, starts, tokens_mask, left * scale, 0, HALF, BLOCK_HALF)
    _store_part(out_ptr, starts, tokens_mask, right * scale, HALF, HALF, BLOCK_HALF)
    if TAIL > 0:
        _store_part(out_ptr, starts, tokens_mask, tail * scale, 2 * HALF, TAIL, BLOCK_TAIL)


@triton.jit
def _load_weight(weight_ptr, head, first, DIM: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    return tl.load(weight_ptr + head * DIM + first + columns, mask=columns < SIZE, other=0.0).to(tl.float32)[
        None, :
    ]


@triton.jit(do_not_specialize=["num_tokens"], do_not_specialize_on_alignment=["cache_position_ptr"])
def _rotary_kernel(
    heads_ptr, cos_ptr, sin_ptr, weight_ptr, cache_position_ptr, out_ptr, key_cache_ptr, value_cache_ptr,
    num_tokens, num_out_heads, num_key_heads, stride_token, stride_head, eps, weight_offset,
    inverse_key_scale, inverse_value_scale,
    DIM: tl.constexpr, ROTARY_DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr, BLOCK_HALF: tl.constexpr,
    BLOCK_TAIL: tl.constexpr, HAS_NORM: tl.constexpr, HAS_CACHE: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """One head of BLOCK_TOKENS tokens. Heads: those of `out` first, then keys, then values, if they have a cache."""
    begin(CHAINED)
    HALF: tl.constexpr = ROTARY_DIM // 2
    TAIL: tl.constexpr = DIM - ROTARY_DIM
    tokens = tl.program_id(0).to(tl.int64) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    head = tl.program_id(1).to(tl.int64)
    in_range = tokens < num_tokens
    starts = tokens * stride_token + head * stride_head
    left = _load_part(heads_ptr, starts, in_range, 0, HALF, BLOCK_HALF)
    right = _load_part(heads_ptr, starts, in_range, HALF, HALF, BLOCK_HALF)
    if TAIL > 0:
        tail = _load_part(heads_ptr, starts, in_range, ROTARY_DIM, TAIL, BLOCK_TAIL)
    is_rotated = head < num_out_heads + num_key_heads
    if is_rotated:
        if HAS_NORM:
            squares = tl.sum(left * left, axis=1) + tl.sum(right * right, axis=1)
            if TAIL > 0:
                squares += tl.sum(tail * tail, axis=1)
            inverse = tl.rsqrt(squares / DIM + eps)[:, None]
            left *= inverse * (_load_weight(weight_ptr, head, 0, DIM, HALF, BLOCK_HALF) + weight_offset)
            right *= inverse * (_load_weight(weight_ptr, head, HALF, DIM, HALF, BLOCK_HALF) + weight_offset)
            if TAIL > 0:
                tail *= inverse * (
                    _load_weight(weight_ptr, head, ROTARY_DIM, DIM, TAIL, BLOCK_TAIL) + weight_offset
                )
        angles = tokens * ROTARY_DIM
        rotated_left = left * _load_part(cos_ptr, angles, in_range, 0, HALF, BLOCK_HALF)
        rotated_left += right * _load_part(sin_ptr, angles, in_range, 0, HALF, BLOCK_HALF)
        rotated_right = right * _load_part(cos_ptr, angles, in_range, HALF, HALF, BLOCK_HALF)
        rotated_right += left * _load_part(sin_ptr, angles, in_range, HALF, HALF, BLOCK_HALF)
        left = rotated_left
        right = rotated_right
    if TAIL == 0:
        tail = left
    if head < num_out_heads:
        _store_head(out_ptr, (tokens * num_out_heads + head) * DIM, in_range, left, right, tail, 1.0,
                    HALF, TAIL, BLOCK_HALF, BLOCK_TAIL)  # fmt: skip
    elif HAS_CACHE:
        cache_positions = tl.load(cache_position_ptr + tokens, mask=in_range, other=0)
        if is_rotated:
            targets = (cache_positions * num_key_heads + head - num_out_heads) * DIM
            _store_head(key_cache_ptr, targets, in_range, left, right, tail, inverse_key_scale,
                        HALF, TAIL, BLOCK_HALF, BLOCK_TAIL)  # fmt: skip
        else:
            targets = (cache_positions * num_key_heads + head - num_out_heads - num_key_heads) * DIM
            _store_head(value_cache_ptr, targets, in_range, left, right, tail, inverse_value_scale,
                        HALF, TAIL, BLOCK_HALF, BLOCK_TAIL)  # fmt: skip


def apply_rotary(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    return _rotate(heads, cos, sin, None, None)


def rotate_and_store(
    heads: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    norm: NormOfHeads | None,
    target: Destination,
) -> torch.Tensor:
    return _rotate(heads, cos, sin, norm, target)


def _rotate(
    heads: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    norm: NormOfHeads | None,
    destination: Destination | None,
) -> torch.Tensor:
    """Rotated heads, or only the query heads among them when keys and values have a destination."""
    num_tokens, num_heads, dim = heads.shape
    num_key_heads = 0 if destination is None else destination.key_cache.shape[2]
    num_out_heads = num_heads - 2 * num_key_heads
    out = torch.empty((num_tokens, num_out_heads, dim), dtype=heads.dtype, device=heads.device)
    if num_tokens == 0:
        return out
    target = destination or Destination(out, out, cos)
    weight, eps, offset = norm or (cos, 0.0, 0.0)
    tail = dim - cos.shape[1]
    _rotary_kernel[(triton.cdiv(num_tokens, _BLOCK_TOKENS), num_heads)](
        heads,
        cos,
        sin,
        weight,
        target.cache_positions,
        out,
        target.key_cache,
        target.value_cache,
        num_tokens,
        num_out_heads,
        num_key_heads,
        heads.stride(0),
        heads.stride(1),
        eps,
        offset,
        1 / target.key_scale,
        1 / target.value_scale,
        DIM=dim,
        ROTARY_DIM=cos.shape[1],
        BLOCK_TOKENS=_BLOCK_TOKENS,
        BLOCK_HALF=triton.next_power_of_2(cos.shape[1] // 2),
        BLOCK_TAIL=triton.next_power_of_2(tail) if tail else 1,
        HAS_NORM=norm is not None,
        HAS_CACHE=destination is not None,
        num_warps=2,
        **chained(heads.device),
    )
    return out
