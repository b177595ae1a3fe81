"""The choice of experts for every token."""

import torch

from penstock_kernels.base.results import Routes


def route(logits: torch.Tensor, top_k: int, normalized: bool) -> Routes:
    wide = torch.promote_types(logits.dtype, torch.float32)
    weights, expert_ids = logits.softmax(-1, dtype=wide).sort(dim=-1, descending=True, stable=True)
    weights, expert_ids = weights[:, :top_k], expert_ids[:, :top_k]
    if normalized:
        weights = weights / weights.sum(-1, keepdim=True)
    return Routes(weights.contiguous(), expert_ids.contiguous())
