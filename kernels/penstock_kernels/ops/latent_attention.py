"""Attention whose cache holds one compressed vector (a latent) for each token, of which all keys and values are made.

Cache layout: [num_blocks, block_size, 1, rank + rope_dim]: the latent, and behind it the rotated numbers that all heads
share. A head's key is its projection of the latent beside these numbers, its value another projection of the latent.
"""

import torch

from penstock_kernels import table
from penstock_kernels.base.attention_spans import (
    MAX_KERNEL_RANK,
    AttendLatents,
    AttentionSpans,
    DecodeSpans,
    LatentArguments,
)
from penstock_kernels.base.checks import require, require_same_dtype
from penstock_kernels.base.devices import runs_kernels

# Our own implementation for the device.
own_latent_attention: AttendLatents = table.latent_attention


def rotate_and_store_latents(
    query: torch.Tensor,
    down: torch.Tensor,
    norm: tuple[torch.Tensor, float],
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    cache: torch.Tensor,
    cache_positions: torch.Tensor,
) -> None:
    """Rotate the last numbers of every query in place; norm the latents, rotate what is behind them, and store both.

    query: [num_tokens, num_heads, nope_dim + rope_dim]; down: [num_tokens, rank + rope_dim]; norm: weight [rank] and
    eps of a root-mean-square norm; cos, sin: [num_tokens, rope_dim] as in `apply_rotary`, or both None: nothing is
    rotated; cache_positions as in `store_kv`.
    """
    op, (weight, _) = "rotate_and_store_latents", norm
    rank, rope_dim = weight.shape[0], cache.shape[-1] - weight.shape[0]
    require(
        cache.dim() == 4
        and cache.is_contiguous()
        and cache.shape[2] == 1
        and rope_dim > 0
        and down.shape == (len(query), rank + rope_dim),
        lambda: f"{op}: latents {tuple(down.shape)} of rank {rank} against cache {tuple(cache.shape)}",
    )
    require(
        query.dim() == 3 and query.shape[2] >= rope_dim and query.stride(2) == down.stride(1) == 1,
        lambda: (
            f"{op}: query {tuple(query.shape)}, of which {rope_dim} are rotated; both with rows side by side"
        ),
    )
    _check_angles(op, query, rope_dim, cos, sin)
    require(
        cache_positions.shape == query.shape[:1] and cache_positions.dtype == torch.int64,
        f"{op}: cache_positions must be int64, one per token",
    )
    require_same_dtype(op, query=query, down=down, norm=weight, cache=cache)
    table.rotate_and_store_latents(query, down, norm, cos, sin, cache, cache_positions)


def _check_angles(
    op: str, query: torch.Tensor, rope_dim: int, cos: torch.Tensor | None, sin: torch.Tensor | None
) -> None:
    if cos is None or sin is None:
        require(cos is sin, f"{op}: cos and sin, or none of them")
        return
    require(
        cos.shape == sin.shape == (len(query), rope_dim)
        and rope_dim % 2 == 0
        and cos.is_contiguous()
        and sin.is_contiguous(),
        lambda: f"{op}: cos {tuple(cos.shape)}, sin {tuple(sin.shape)}, query {tuple(query.shape)}",
    )
    require_same_dtype(op, query=query, cos=cos, sin=sin)


def latent_attention(
    query: torch.Tensor,
    cache: torch.Tensor,
    key_up: torch.Tensor,
    value_up: torch.Tensor,
    spans: AttentionSpans | DecodeSpans,
    scale: float,
    attend: AttendLatents | None = None,
) -> torch.Tensor:
    """Causal attention; latents of the spans themselves must be stored already.

    query: [num_tokens, num_heads, nope_dim + rope_dim], the last numbers rotated; key_up: [num_heads, rank, nope_dim];
    value_up: [num_heads, value_dim, rank], both contiguous; spans as in `paged_attention`. A short span is computed in
    the space of the latents, where keys need not be made; a long one makes the keys and values of its context.
    `attend`: the implementation, by default our own. Result: [num_tokens, num_heads, value_dim].
    """
    num_heads, rank, nope_dim = key_up.shape
    rope_dim = cache.shape[3] - rank
    require(
        query.dim() == 3
        and query.shape[1:] == (num_heads, nope_dim + rope_dim)
        and query.stride(2) == 1
        and (value_up.shape[0], value_up.shape[2]) == (num_heads, rank)
        and cache.shape[1:3] == (spans.block_size, 1),
        lambda: (
            f"latent_attention: query {tuple(query.shape)}, cache {tuple(cache.shape)}, "
            f"key_up {tuple(key_up.shape)}, value_up {tuple(value_up.shape)}"
        ),
    )
    require(
        key_up.is_contiguous() and value_up.is_contiguous() and cache.is_contiguous(),
        "latent_attention: key_up, value_up and cache must be contiguous",
    )
    require(spans.tree is None, "latent_attention: no trees")
    require_same_dtype("latent_attention", query=query, cache=cache, key_up=key_up, value_up=value_up)
    arguments = LatentArguments(query, cache, key_up, value_up, spans, scale)
    return (attend or own_latent_attention)(arguments)


def latent_parts_bytes(
    device: torch.device,
    dtype: torch.dtype,
    num_heads: int,
    rank: int,
    num_spans: int,
    num_tokens: int,
    max_context_len: int,
) -> int:
    """`attention_parts_bytes` for our attention over latents, with queries in their space; heads are this rank's."""
    if not runs_kernels(device) or rank > MAX_KERNEL_RANK:
        return 0
    found: int = table.launcher("latent_attention.latent_parts_bytes")(
        device, dtype, num_heads, rank, num_spans, num_tokens, max_context_len
    )
    return found
