"""The plain PyTorch twin of every op: what a kernel must equal, and what runs on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from penstock_kernels.destination import Destination
from penstock_kernels.linear import linear
from penstock_kernels.reference_attention import paged_attention
from penstock_kernels.reference_noise import gumbel, uniform
from penstock_kernels.reference_sampling import (
    add_bias,
    apply_bitmask,
    draw,
    penalize,
    token_logprobs,
)

__all__ = [
    "add_bias",
    "apply_bitmask",
    "draw",
    "gumbel",
    "paged_attention",
    "penalize",
    "token_logprobs",
    "uniform",
]


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None = None,
    weight_offset: float = 0.0,
) -> torch.Tensor:
    if residual is not None:
        x = residual.add_(x)
    if weight_offset:
        return (rms_norm(x.float(), weight.float() + weight_offset, eps)).to(x.dtype)
    # One pass without a temporary of squares: 3 to 20 times faster than F.rms_norm over 2048 rows on a CPU.
    wide = torch.promote_types(x.dtype, torch.float32)
    norm: torch.Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide)
    scale = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return (x * scale).to(x.dtype).mul_(weight)


def layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    if residual is not None:
        x = residual.add_(x)
    if weight.dim() == 1:
        return F.layer_norm(x, weight.shape, weight, bias, eps)
    normed = F.layer_norm(x, x.shape[-1:], None, None, eps).mul_(weight)
    return normed if bias is None else normed.add_(bias)


def embedding(token_ids: torch.Tensor, weight: torch.Tensor, first: int = 0) -> torch.Tensor:
    if first == 0 and weight.shape[0] > 0 and not bool((token_ids >= weight.shape[0]).any()):
        return F.embedding(token_ids, weight)
    foreign = (token_ids < first) | (token_ids >= first + weight.shape[0])
    local = (token_ids - first).masked_fill(foreign, 0)
    return F.embedding(local, weight).masked_fill_(foreign.unsqueeze(1), 0)


def rotary_table(
    positions: torch.Tensor, inv_freq: torch.Tensor, amplitude: float
) -> tuple[torch.Tensor, torch.Tensor]:
    angles = positions.float().unsqueeze(1) * inv_freq
    cos, sin = angles.cos() * amplitude, angles.sin() * amplitude
    return torch.cat((cos, cos), dim=1), torch.cat((-sin, sin), dim=1)


def all_finite(x: torch.Tensor) -> bool:
    # Smallest and largest are NaN where any number is: twenty times as fast as asking each.
    return x.numel() == 0 or all(bool(end.isfinite()) for end in torch.aminmax(x))


def apply_rotary(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    rotary_dim = cos.shape[-1]
    if rotary_dim < heads.shape[-1]:
        rotated = apply_rotary(heads[..., :rotary_dim], cos, sin)
        return torch.cat((rotated, heads[..., rotary_dim:]), dim=-1)
    swapped = heads.roll(rotary_dim // 2, dims=-1)
    return (heads * cos.unsqueeze(1)).addcmul_(swapped, sin.unsqueeze(1))


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def gelu_mul(gate_up: torch.Tensor, tanh: bool = True) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh" if tanh else "none").mul_(up)


def clamped_swiglu(gate_up: torch.Tensor, alpha: float = 1.702, limit: float = 7.0) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (gate * alpha).sigmoid_().mul_(gate).mul_(up + 1)


def route(logits: torch.Tensor, top_k: int, normalized: bool) -> tuple[torch.Tensor, torch.Tensor]:
    wide = torch.promote_types(logits.dtype, torch.float32)
    weights, expert_ids = logits.softmax(-1, dtype=wide).sort(dim=-1, descending=True, stable=True)
    weights, expert_ids = weights[:, :top_k], expert_ids[:, :top_k]
    if normalized:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights.contiguous(), expert_ids.contiguous()


def grouped_mlp(
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    expert_weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    activate: Callable[[torch.Tensor], torch.Tensor],
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    invariant: bool = False,
) -> torch.Tensor:
    flat = expert_ids.flatten()
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat, minlength=gate_up.shape[0]).tolist()
    gathered = x[order // expert_ids.shape[1]]
    outputs = torch.empty(len(flat), down.shape[1], dtype=x.dtype, device=x.device)
    start = 0
    for expert, count in enumerate(counts):
        if count == 0:
            continue
        rows = gathered[start : start + count]
        gate_up_row = None if gate_up_bias is None else gate_up_bias[expert]
        down_row = None if down_bias is None else down_bias[expert]
        hidden = activate(linear(rows, gate_up[expert], gate_up_row, invariant))
        outputs[order[start : start + count]] = linear(hidden, down[expert], down_row, invariant)
        start += count
    weighted = outputs.view(*expert_ids.shape, down.shape[1]).float() * expert_weights.float().unsqueeze(-1)
    return weighted.sum(1).to(x.dtype)


def rotate_and_store(
    heads: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    norm: tuple[torch.Tensor, float] | None,
    target: Destination,
) -> torch.Tensor:
    num_kv_heads = target.key_cache.shape[2]
    num_rotated = heads.shape[1] - num_kv_heads
    query_key, value = heads[:, :num_rotated], heads[:, num_rotated:]
    if norm is not None:
        query_key = rms_norm(query_key, *norm)
    query_key = apply_rotary(query_key, cos, sin)
    query, key = query_key[:, :-num_kv_heads], query_key[:, -num_kv_heads:]
    store_kv(key, value, target)
    return query


def store_kv(key: torch.Tensor, value: torch.Tensor, target: Destination) -> None:
    for rows, cache, scale in (
        (key, target.key_cache, target.key_scale),
        (value, target.value_cache, target.value_scale),
    ):
        flat = cache.flatten(0, 1)
        if cache.dtype == rows.dtype:
            flat.index_copy_(0, target.slots, rows)
        else:
            flat.view(torch.uint8).index_copy_(0, target.slots, _narrow(rows, scale, cache.dtype))


def _narrow(rows: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
    """The bits of numbers in 8 bits. What is beyond the largest becomes that: plain conversion makes it NaN."""
    largest, wide = torch.finfo(dtype).max, torch.promote_types(rows.dtype, torch.float32)
    return (rows.to(wide) / scale).clamp(-largest, largest).to(dtype).view(torch.uint8)


def copy_blocks(pool: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
    bits = pool.view(torch.uint8) if pool.dtype.itemsize == 1 else pool
    bits[:, :, targets.long()] = bits[:, :, sources.long()]


def find_decodes(
    slots: torch.Tensor,
    positions: torch.Tensor,
    tokens: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    spare: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    block_tables = block_table.index_select(0, slots)
    blocks = block_tables.gather(1, (positions // block_size).unsqueeze(1)).squeeze(1).long()
    return (
        tokens[slots, positions].long(),
        blocks * block_size + positions % block_size,
        torch.where(slots == spare, 0, positions + 1).int(),
        block_tables,
    )


def write_runs(target: torch.Tensor, values: torch.Tensor, runs: torch.Tensor) -> None:
    first_values, first_places, lengths = runs.long().unbind(dim=1)
    run_of = torch.arange(len(runs), device=runs.device).repeat_interleave(lengths)
    offsets = torch.arange(len(run_of), device=runs.device) - (lengths.cumsum(0) - lengths)[run_of]
    target[first_places[run_of] + offsets] = values[first_values[run_of] + offsets]
