"""Everything between the projections and attention over latents, in one pass: the norm of a token's latent, rotation,
and the write into the paged cache."""

import torch
import triton
import triton.language as tl


@triton.jit
def _turn(from_ptr, to_ptr, cos_ptr, sin_ptr, HALF: tl.constexpr, BLOCK_HALF: tl.constexpr):
    """Rotate 2 * HALF numbers, which may stay where they are."""
    columns = tl.arange(0, BLOCK_HALF)
    mask = columns < HALF
    left = tl.load(from_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    right = tl.load(from_ptr + HALF + columns, mask=mask, other=0.0).to(tl.float32)
    turned_left = left * tl.load(cos_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    turned_left += right * tl.load(sin_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    turned_right = right * tl.load(cos_ptr + HALF + columns, mask=mask, other=0.0).to(tl.float32)
    turned_right += left * tl.load(sin_ptr + HALF + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(to_ptr + columns, turned_left.to(to_ptr.dtype.element_ty), mask=mask)
    tl.store(to_ptr + HALF + columns, turned_right.to(to_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize_on_alignment=["cache_position_ptr"])
def _latents_kernel(
    query_ptr, down_ptr, weight_ptr, cos_ptr, sin_ptr, cache_ptr, cache_position_ptr,
    stride_token, stride_head, stride_down, eps,
    NUM_HEADS: tl.constexpr, NOPE_DIM: tl.constexpr, RANK: tl.constexpr, ROPE_DIM: tl.constexpr,
    BLOCK_RANK: tl.constexpr, BLOCK_HALF: tl.constexpr, ROTATES: tl.constexpr,
):  # fmt: skip
    """A program does one head of a token, or, behind the heads, its latent."""
    HALF: tl.constexpr = ROPE_DIM // 2
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    if ROTATES:
        cos_ptr += token * ROPE_DIM
        sin_ptr += token * ROPE_DIM
    if head < NUM_HEADS:
        if ROTATES:
            rotating = query_ptr + token * stride_token + head * stride_head + NOPE_DIM
            _turn(rotating, rotating, cos_ptr, sin_ptr, HALF, BLOCK_HALF)
    else:
        columns = tl.arange(0, BLOCK_RANK)
        mask = columns < RANK
        down = down_ptr + token * stride_down
        target = cache_ptr + tl.load(cache_position_ptr + token) * (RANK + ROPE_DIM)
        x = tl.load(down + columns, mask=mask, other=0.0).to(tl.float32)
        inverse = tl.rsqrt(tl.sum(x * x, axis=0) / RANK + eps)
        x = x * inverse * tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
        tl.store(target + columns, x.to(cache_ptr.dtype.element_ty), mask=mask)
        if ROTATES:
            _turn(down + RANK, target + RANK, cos_ptr, sin_ptr, HALF, BLOCK_HALF)
        else:
            shared = tl.arange(0, 2 * BLOCK_HALF)
            rest = tl.load(down + RANK + shared, mask=shared < ROPE_DIM, other=0.0)
            tl.store(target + RANK + shared, rest, mask=shared < ROPE_DIM)


def rotate_and_store_latents(
    query: torch.Tensor,
    down: torch.Tensor,
    norm: tuple[torch.Tensor, float],
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    cache: torch.Tensor,
    cache_positions: torch.Tensor,
) -> None:
    (num_tokens, num_heads, head_dim), rank = query.shape, len(norm[0])
    rope_dim, rotates = down.shape[1] - rank, cos is not None
    if num_tokens == 0:
        return
    num_heads = num_heads if rotates else 0
    _latents_kernel[(num_tokens, num_heads + 1)](
        query,
        down,
        norm[0],
        cos,
        sin,
        cache,
        cache_positions,
        *query.stride()[:2],
        down.stride(0),
        norm[1],
        NUM_HEADS=num_heads,
        NOPE_DIM=head_dim - rope_dim,
        RANK=rank,
        ROPE_DIM=rope_dim,
        BLOCK_RANK=triton.next_power_of_2(rank),
        BLOCK_HALF=triton.next_power_of_2(rope_dim // 2),
        ROTATES=rotates,
        num_warps=1,
    )
