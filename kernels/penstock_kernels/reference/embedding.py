"""Token embedding over a part of the vocabulary."""

import torch
import torch.nn.functional as F


def embedding(token_ids: torch.Tensor, weight: torch.Tensor, first: int = 0) -> torch.Tensor:
    if first == 0 and weight.shape[0] > 0 and not bool((token_ids >= weight.shape[0]).any()):
        return F.embedding(token_ids, weight)
    foreign = (token_ids < first) | (token_ids >= first + weight.shape[0])
    local = (token_ids - first).masked_fill(foreign, 0)
    return F.embedding(local, weight).masked_fill_(foreign.unsqueeze(1), 0)
