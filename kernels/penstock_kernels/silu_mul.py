"""The gated activation of a feed-forward layer."""

import torch

from penstock_kernels import reference
from penstock_kernels.checks import require


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Return `silu(gate) * up`.

    gate_up: [..., 2 * dim], gate first, as one fused projection leaves them. Result: [..., dim].
    """
    require(gate_up.shape[-1] % 2 == 0, f"silu_mul: last dimension {gate_up.shape[-1]} is odd")
    return reference.silu_mul(gate_up)
