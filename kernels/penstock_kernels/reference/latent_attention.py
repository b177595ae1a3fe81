"""Attention over latents: decodes in the space of the latents, longer spans with keys and values of every head."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from penstock_kernels.base.attention_spans import (
    AttendLatents,
    AttentionSpans,
    DecodeSpans,
    LatentArguments,
    Reach,
)
from penstock_kernels.base.upload import upload
from penstock_kernels.reference.attention import Group, work_groups
from penstock_kernels.reference.norm import rms_norm
from penstock_kernels.reference.rotary import apply_rotary

# Numbers of keys and values that are made at a time: heads come in parts where a context is long.
_MOST_NUMBERS = 2**26


def rotate_and_store_latents(
    query: torch.Tensor,
    down: torch.Tensor,
    norm: tuple[torch.Tensor, float],
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    cache: torch.Tensor,
    cache_positions: torch.Tensor,
) -> None:
    weight, eps = norm
    latents, shared = rms_norm(down[:, : len(weight)], weight, eps, None, 0.0), down[:, len(weight) :]
    if cos is not None and sin is not None:
        rotating = query[..., -cos.shape[1] :]
        rotating.copy_(apply_rotary(rotating, cos, sin))
        shared = apply_rotary(shared[:, None], cos, sin).squeeze(1)
    cache.flatten(0, 2).index_copy_(0, cache_positions, torch.cat((latents, shared), dim=-1))


def latent_attention(arguments: LatentArguments) -> torch.Tensor:
    query, cache, spans = arguments.query, arguments.cache, arguments.spans
    key_up, value_up, scale = arguments.key_up, arguments.value_up, arguments.scale
    output = query.new_empty(*query.shape[:2], value_up.shape[1])
    if isinstance(spans, DecodeSpans):
        on_host = spans.on_host()
        used = [
            span for span, length in enumerate(on_host.query_lens) if length and on_host.context_lens[span]
        ]
        rows = torch.tensor(on_host.rows_of(used), dtype=torch.int64, device=query.device)
        if used:
            output[rows] = latent_attention(arguments.among(rows, on_host.among(used)))
        return output
    for group in spans.shared((Reach(), query.dtype), lambda: work_groups(spans, Reach(), query.dtype)):
        part = query if group.rows is None else query[group.rows]
        latents = cache.flatten(0, 2).index_select(0, group.positions)
        attend = _absorbed if group.query_len == 1 else _expanded
        attended = attend(part, latents, key_up, value_up, group, scale)
        if group.rows is None:
            return attended
        output.index_copy_(0, group.rows, attended)
    return output


def latent_attention_beside(
    arguments: LatentArguments, long: Sequence[int], attend: AttendLatents, attend_long: AttendLatents
) -> torch.Tensor:
    """Computes the spans whose numbers are in `long` by `attend_long`, and the others by `attend`."""
    spans, query = arguments.spans, arguments.query
    assert isinstance(spans, AttentionSpans), "the host knows which spans are long"
    if len(long) in {0, len(spans.query_lens)}:
        return attend_long(arguments) if long else attend(arguments)
    output = query.new_empty(*query.shape[:2], arguments.value_up.shape[1])
    some, others = spans.shared(("apart", *long), lambda: _apart(spans, long))
    output.index_copy_(0, others.rows, attend(arguments.among(*others)))
    return output.index_copy_(0, some.rows, attend_long(arguments.among(*some)))


class _Some(NamedTuple):
    """Some of the spans of a step, and their rows."""

    rows: torch.Tensor
    spans: AttentionSpans


def _apart(spans: AttentionSpans, members: Sequence[int]) -> tuple[_Some, _Some]:
    """The spans in `members`, and the others."""
    others = [span for span in range(len(spans.query_lens)) if span not in members]
    return _some(spans, members), _some(spans, others)


def _some(spans: AttentionSpans, members: Sequence[int]) -> _Some:
    rows = torch.tensor(spans.rows_of(members), dtype=torch.int64)
    return _Some(upload(rows, spans.block_tables.device), spans.among(members))


def _absorbed(
    query: torch.Tensor,
    latents: torch.Tensor,
    key_up: torch.Tensor,
    value_up: torch.Tensor,
    group: Group,
    scale: float,
) -> torch.Tensor:
    """One query for each span: it goes down to the latents, and what it finds there goes up to values."""
    rank, nope_dim = key_up.shape[1:]
    down = torch.bmm(query[..., :nope_dim].transpose(0, 1), key_up.transpose(1, 2)).transpose(0, 1)
    absorbed = torch.cat((down, query[..., nope_dim:]), dim=-1)
    # All heads are queries of the one key head.
    key = latents.view(group.num_spans, 1, -1, latents.shape[1])
    found = F.scaled_dot_product_attention(
        absorbed.unsqueeze(1), key, key[..., :rank], attn_mask=group.mask, scale=scale
    )
    return torch.bmm(found.squeeze(1).transpose(0, 1), value_up.transpose(1, 2)).transpose(0, 1).contiguous()


def _expanded(
    query: torch.Tensor,
    latents: torch.Tensor,
    key_up: torch.Tensor,
    value_up: torch.Tensor,
    group: Group,
    scale: float,
) -> torch.Tensor:
    """One span of several queries: keys and values of some heads at a time."""
    num_heads, rank = key_up.shape[:2]
    numbers = len(latents) * (query.shape[2] + value_up.shape[1])
    step = max(min(_MOST_NUMBERS // numbers, num_heads), 1)
    output = query.new_empty(*query.shape[:2], value_up.shape[1])
    for first in range(0, num_heads, step):
        heads = slice(first, first + step)
        key_nope = latents[:, :rank] @ key_up[heads]
        value = latents[:, :rank] @ value_up[heads].transpose(1, 2)
        key_rope = latents[:, rank:].expand(len(key_nope), -1, -1)
        attended = F.scaled_dot_product_attention(
            query[:, heads].transpose(0, 1).unsqueeze(0),
            torch.cat((key_nope, key_rope), dim=-1).unsqueeze(0),
            value.unsqueeze(0),
            attn_mask=group.mask,
            is_causal=group.mask is None,
            scale=scale,
        )
        output[:, heads] = attended.squeeze(0).transpose(0, 1)
    return output
