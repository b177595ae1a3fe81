"""Attention: decodes of similar length are computed together, and what layers share is computed once."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from penstock_kernels.base.attention_spans import (
    MAX_TREE_LEN,
    AttentionArguments,
    AttentionSpans,
    DecodeSpans,
    Reach,
    Scoring,
)
from penstock_kernels.base.upload import upload


@dataclass(frozen=True, slots=True)
class Group:
    """Spans computed by one call: decodes of similar length together, a longer span by itself."""

    num_spans: int
    query_len: int
    # Rows of the queries; None means all of them, in order.
    rows: torch.Tensor | None
    # [num_spans * context_len] flat cache positions. Padding repeats a position of the same span. Numbers of
    # another span could be NaN, which no mask hides.
    positions: torch.Tensor
    # [num_spans, 1, query_len, context_len], 0 or -inf; None when nothing is masked beyond plain causality.
    mask: torch.Tensor | None
    # [num_spans, 1] on the device: how many of the positions each span has; its queries are at the last of them.
    seen_lens: torch.Tensor

    def distances(self) -> torch.Tensor:
        """[num_spans, 1, query_len, context_len] float32: from queries back to keys, so at most 0 where these are
        seen."""
        device = self.seen_lens.device
        queries = self.seen_lens - self.query_len + torch.arange(self.query_len, device=device)
        keys = torch.arange(len(self.positions) // self.num_spans, device=device)
        return (keys - queries.unsqueeze(2)).float().unsqueeze(1)


def paged_attention(arguments: AttentionArguments) -> torch.Tensor:
    spans = arguments.spans
    if isinstance(spans, DecodeSpans):
        return _decode_attention(arguments, spans)
    key = (arguments.scoring.reach, arguments.query.dtype)
    groups = spans.shared(key, lambda: work_groups(spans, *key))
    query = arguments.query
    if len(groups) == 1 and groups[0].rows is None:
        return _attend_group(query, arguments, groups[0])
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    for group in groups:
        output.index_copy_(0, _rows(group), _attend_group(query[group.rows], arguments, group))
    return output


def _decode_attention(arguments: AttentionArguments, spans: DecodeSpans) -> torch.Tensor:
    """The host reads the lengths; spans without tokens or context are left out."""
    on_host = spans.on_host()
    used = [span for span, length in enumerate(on_host.query_lens) if length and on_host.context_lens[span]]
    query = arguments.query
    rows = torch.tensor(on_host.rows_of(used), dtype=torch.int64, device=query.device)
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if used:
        output[rows] = paged_attention(arguments.among(rows, on_host.among(used)))
    return output


def _rows(group: Group) -> torch.Tensor:
    assert group.rows is not None, "a group without rows is the only one"
    return group.rows


def _attend_group(query: torch.Tensor, arguments: AttentionArguments, group: Group) -> torch.Tensor:
    scoring, (num_kv_heads, head_dim) = arguments.scoring, arguments.key_cache.shape[2:]
    caches = ((arguments.key_cache, scoring.key_scale), (arguments.value_cache, scoring.value_scale))
    key, value = (
        _gather(cache, group.positions, query.dtype, scale)
        .view(group.num_spans, -1, num_kv_heads, head_dim)
        .transpose(1, 2)
        for cache, scale in caches
    )
    if group.query_len == 1 and scoring.sinks is None and scoring.slopes is None:
        # The query heads of one kv head take the place of query positions, so that keys are not copied.
        grouped = query.reshape(group.num_spans, num_kv_heads, -1, head_dim)
        return _attend(grouped, key, value, group, False, scoring).reshape(query.shape)
    heads = query.view(group.num_spans, group.query_len, -1, head_dim).transpose(1, 2)
    causal = group.mask is None and group.query_len > 1
    attended = _attend(heads, key, value, group, causal, scoring)
    return attended.transpose(1, 2).reshape(query.shape).contiguous()


def _gather(cache: torch.Tensor, positions: torch.Tensor, dtype: torch.dtype, scale: float) -> torch.Tensor:
    """Rows of the cache by flat position; of a cache of smaller numbers, in the queries' dtype."""
    flat = cache.flatten(0, 1)
    if cache.dtype == dtype:
        return flat.index_select(0, positions)
    rows = flat.view(torch.uint8).index_select(0, positions).view(cache.dtype)
    return rows.to(dtype) if scale == 1.0 else (rows.float() * scale).to(dtype)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    group: Group,
    causal: bool,
    scoring: Scoring,
) -> torch.Tensor:
    mask = group.mask
    if scoring.soft_cap is None and scoring.sinks is None and scoring.slopes is None:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=causal, scale=scoring.scale, enable_gqa=True
        )
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = (query.float() @ key.float().transpose(-1, -2)).mul_(scoring.scale)
    if scoring.soft_cap is not None:
        scores = (scores / scoring.soft_cap).tanh_().mul_(scoring.soft_cap)
    if scoring.slopes is not None:
        scores += scoring.slopes.view(-1, 1, 1) * group.distances()
    if causal:
        mask = _causal_mask(query.shape[2], key.shape[2], Reach(), scores.device)
    if mask is not None:
        scores += mask
    if scoring.sinks is not None:
        sinks = scoring.sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        return (torch.cat((scores, sinks), -1).softmax(-1)[..., :-1] @ value.float()).to(query.dtype)
    return (scores.softmax(-1) @ value.float()).to(query.dtype)


def work_groups(spans: AttentionSpans, reach: Reach, dtype: torch.dtype) -> list[Group]:
    starts = spans.query_starts
    return [_group(spans, members, starts, reach, dtype) for members in _members(spans, reach)]


def _members(spans: AttentionSpans, reach: Reach) -> list[list[int]]:
    """Decodes whose contexts are within a factor of two share a group: at most half of what is gathered is padding."""
    alone: list[list[int]] = []
    decodes: dict[int, list[int]] = {}
    for span, query_len in enumerate(spans.query_lens):
        if query_len == 0:
            continue
        if query_len > 1 or spans.unbatched or spans.tree is not None:
            alone.append([span])
            continue
        seen = _seen_len(spans, span, reach)
        decodes.setdefault(max(seen - 1, 63).bit_length(), []).append(span)
    return [*decodes.values(), *alone]


def _seen_len(spans: AttentionSpans, span: int, reach: Reach) -> int:
    """Positions that any query of the span can see."""
    context_len = spans.context_lens[span]
    return context_len - reach.first(context_len - spans.query_lens[span])


def _group(
    spans: AttentionSpans, members: list[int], starts: list[int], reach: Reach, dtype: torch.dtype
) -> Group:
    device = spans.block_tables.device
    query_len = spans.query_lens[members[0]]
    seen = [_seen_len(spans, span, reach) for span in members]
    longest = max(seen)
    rows = None
    if len(members) < len(spans.query_lens):
        rows = torch.cat([torch.arange(starts[span], starts[span] + query_len) for span in members])
        rows = upload(rows, device)
    contexts = [spans.context_lens[span] for span in members]
    # [num_spans, 1] each.
    seen_lens, context_lens, chosen = (
        upload(torch.tensor(numbers), device).unsqueeze(1) for numbers in (seen, contexts, members)
    )
    index = torch.arange(longest, device=device)
    offsets = torch.minimum(index, seen_lens - 1) + (context_lens - seen_lens)  # [num_spans, longest]
    tables = spans.block_tables.index_select(0, chosen.squeeze(1)).long()
    blocks = tables.gather(1, offsets // spans.block_size)
    positions = (blocks * spans.block_size + offsets % spans.block_size).flatten()
    mask = _mask(query_len, seen, reach, index < seen_lens, dtype)
    if spans.tree is not None:
        first = starts[members[0]]
        mask = _tree_mask(spans.tree[first : first + query_len], seen[0]).to(dtype)
    return Group(len(members), query_len, rows, positions, mask, seen_lens)


def _mask(
    query_len: int, seen: list[int], reach: Reach, inside: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor | None:
    if query_len == 1:
        if min(seen) == max(seen):
            return None
        return torch.zeros(inside.shape, dtype=dtype, device=inside.device).masked_fill_(~inside, -torch.inf)[
            :, None, None
        ]
    if query_len == seen[0] and reach.first(query_len - 1) == 0:
        return None
    return _causal_mask(query_len, seen[0], reach, inside.device).to(dtype)


def _causal_mask(query_len: int, key_len: int, reach: Reach, device: torch.device) -> torch.Tensor:
    """[1, 1, query_len, key_len]: the last query is at the last key. A chunk begins at the first key."""
    queries = torch.arange(key_len - query_len, key_len, device=device)[:, None]
    distance = queries - torch.arange(key_len, device=device)
    hidden = distance < 0
    if reach.window is not None:
        hidden |= distance >= reach.window
    if reach.chunk is not None:
        hidden |= distance > queries % reach.chunk
    return torch.zeros(distance.shape, device=device).masked_fill_(hidden, -torch.inf)[None, None]


def _tree_mask(tree: torch.Tensor, key_len: int) -> torch.Tensor:
    """[1, 1, query_len, key_len]: causal, but for the positions close before whose bits are not set."""
    queries = torch.arange(key_len - len(tree), key_len, device=tree.device)[:, None]
    distance = queries - torch.arange(key_len, device=tree.device)
    bits = tree[:, None] >> distance.clamp(0, MAX_TREE_LEN - 1)
    hidden = (distance < 0) | ((distance < MAX_TREE_LEN) & (bits & 1 == 0))
    return torch.zeros(hidden.shape, device=tree.device).masked_fill_(hidden, -torch.inf)[None, None]
