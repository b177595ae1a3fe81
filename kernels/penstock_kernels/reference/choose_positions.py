"""The best positions of a context for each query, as an index finds them."""

import torch
import torch.nn.functional as F

from penstock_kernels.base.seen_rows import SeenRows

# Numbers that are made at a time: queries come in parts where a context is long.
_MOST_NUMBERS = 2**26


def choose_positions(
    query: torch.Tensor,
    weights: torch.Tensor,
    cache: torch.Tensor,
    tables: torch.Tensor,
    seen: SeenRows,
    longest: int,
    chosen: torch.Tensor,
) -> None:
    """Writes where the best positions lie into `chosen`, [num_tokens, top_k], and anything behind the last that a query
    sees. `longest`: no query sees more."""
    keys, block_size = cache.flatten(0, 2), cache.shape[1]
    owners, lens = seen.spans.tolist(), seen.lens.tolist()
    for span in dict.fromkeys(owners):
        rows = [row for row, owner in enumerate(owners) if owner == span and lens[row]]
        context_len = max((lens[row] for row in rows), default=0)
        positions = torch.arange(context_len, device=query.device)
        blocks = tables[span].index_select(0, positions // block_size).long()
        places = blocks * block_size + positions % block_size
        context = keys.index_select(0, places).float()
        step = max(_MOST_NUMBERS // (query.shape[1] * max(context_len, 1)), 1)
        for first in range(0, len(rows), step):
            part = torch.tensor(rows[first : first + step], device=query.device)
            best = _best(query[part], weights[part], context, seen.lens[part], chosen.shape[1])
            chosen[part, : best.shape[1]] = places[best].int()


def _best(
    query: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, lens: torch.Tensor, top_k: int
) -> torch.Tensor:
    """The positions with the best scores, in order; those that a query does not see are behind all others."""
    scores = F.relu(torch.einsum("qhd,td->qht", query.float(), keys))
    merit = torch.einsum("qh,qht->qt", weights * query.shape[2] ** -0.5, scores)
    hidden = torch.arange(len(keys), device=keys.device) >= lens[:, None]
    order = merit.masked_fill(hidden, -torch.inf).sort(dim=1, descending=True, stable=True).indices
    return order[:, :top_k].sort(dim=1).values
