"""The norm of each group, and its gate."""

import torch
import torch.nn.functional as F


def gated_norm(
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    gate_first: bool,
    has_silu: bool = True,
) -> torch.Tensor:
    opens = F.silu if has_silu else torch.sigmoid
    numbers, opened = x.float(), opens(gate.view(x.shape).float())
    if gate_first:
        numbers = numbers * opened
    weighted = weight * F.rms_norm(numbers, numbers.shape[-1:], eps=eps).to(x.dtype)
    return (weighted if gate_first else weighted * opened).to(x.dtype).flatten(1)
