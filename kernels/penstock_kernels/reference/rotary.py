"""Rotary position embedding, alone or between the norm of heads and the write of the cache."""

import torch

from penstock_kernels.base.destination import Destination
from penstock_kernels.base.head_norm import NormOfHeads
from penstock_kernels.reference.norm import rms_norm
from penstock_kernels.reference.store_kv import store_kv


def rotary_table(
    positions: torch.Tensor, inv_freq: torch.Tensor, amplitude: float, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    angles = positions.float().unsqueeze(1) * inv_freq
    cos, sin = angles.cos() * amplitude, angles.sin() * amplitude
    return torch.cat((cos, cos), dim=1).to(dtype), torch.cat((-sin, sin), dim=1).to(dtype)


def apply_rotary(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    rotary_dim = cos.shape[-1]
    if rotary_dim < heads.shape[-1]:
        rotated = apply_rotary(heads[..., :rotary_dim], cos, sin)
        return torch.cat((rotated, heads[..., rotary_dim:]), dim=-1)
    swapped = heads.roll(rotary_dim // 2, dims=-1)
    return (heads * cos.unsqueeze(1)).addcmul_(swapped, sin.unsqueeze(1))


def rotate_and_store(
    heads: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    norm: NormOfHeads | None,
    target: Destination,
) -> torch.Tensor:
    num_kv_heads = target.key_cache.shape[2]
    num_rotated = heads.shape[1] - num_kv_heads
    query_key, value = heads[:, :num_rotated], heads[:, num_rotated:]
    if norm is not None:
        query_key = rms_norm(query_key, norm.weight, norm.eps, None, norm.weight_offset)
    query_key = apply_rotary(query_key, cos, sin)
    query, key = query_key[:, :-num_kv_heads], query_key[:, -num_kv_heads:]
    store_kv(key, value, target)
    return query
