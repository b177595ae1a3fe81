"""Attention over some of the latents of a context, which an index chooses for every query."""

import torch
import torch.nn.functional as F

from penstock_kernels.base.attention_spans import AttentionSpans

# Numbers that are made at a time: queries come in parts where a context is long.
_MOST_NUMBERS = 2**26


def choose_positions(
    query: torch.Tensor, weights: torch.Tensor, cache: torch.Tensor, spans: AttentionSpans, top_k: int
) -> torch.Tensor:
    device, starts = query.device, spans.query_starts
    chosen = torch.full((len(query), top_k), -1, dtype=torch.int64, device=device)
    keys = cache.flatten(0, 2)
    for span, (query_len, context_len) in enumerate(zip(spans.query_lens, spans.context_lens, strict=True)):
        if not query_len:
            continue
        positions = torch.arange(context_len, device=device)
        blocks = spans.block_tables[span].index_select(0, positions // spans.block_size).long()
        flat = blocks * spans.block_size + positions % spans.block_size
        context = keys.index_select(0, flat).float()
        step = max(_MOST_NUMBERS // (query.shape[1] * context_len), 1)
        for first in range(starts[span], starts[span + 1], step):
            end = min(first + step, starts[span + 1])
            begin = context_len - query_len + first - starts[span]
            own = torch.arange(begin, begin + end - first, device=device)
            found = _best(query[first:end], weights[first:end], context, own, top_k)
            chosen[first:end, : found.shape[1]] = torch.where(found < 0, found, flat[found.clamp(min=0)])
    return chosen


def _best(
    query: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, own: torch.Tensor, top_k: int
) -> torch.Tensor:
    """The positions with the best scores up to each query's own, -1 where there are fewer."""
    scores = F.relu(torch.einsum("qhd,td->qht", query.float(), keys) * query.shape[2] ** -0.5)
    merit = torch.einsum("qh,qht->qt", weights, scores)
    hidden = torch.arange(len(keys), device=keys.device) > own[:, None]
    best = merit.masked_fill(hidden, -torch.inf).topk(min(top_k, len(keys)), dim=-1)
    return torch.where(best.values == -torch.inf, -1, best.indices)


def chosen_latent_attention(
    query: torch.Tensor,
    cache: torch.Tensor,
    key_up: torch.Tensor,
    value_up: torch.Tensor,
    chosen: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    rank, nope_dim = key_up.shape[1:]
    output = query.new_empty(*query.shape[:2], value_up.shape[1])
    latents = cache.flatten(0, 2)
    step = max(_MOST_NUMBERS // (chosen.shape[1] * latents.shape[1]), 1)
    for first in range(0, len(query), step):
        part, positions = query[first : first + step], chosen[first : first + step]
        down = torch.bmm(part[..., :nope_dim].transpose(0, 1), key_up.transpose(1, 2)).transpose(0, 1)
        absorbed = torch.cat((down, part[..., nope_dim:]), dim=-1)
        # What is masked is read, too: of a position that holds numbers.
        is_one = positions >= 0
        key = latents[torch.where(is_one, positions, positions[:, :1])].unsqueeze(1)
        found = F.scaled_dot_product_attention(
            absorbed.unsqueeze(1), key, key[..., :rank], attn_mask=is_one[:, None, None], scale=scale
        )
        up = torch.bmm(found.squeeze(1).transpose(0, 1), value_up.transpose(1, 2))
        output[first : first + step] = up.transpose(0, 1)
    return output
