"""A matrix product whose rows do not depend on their number: tiles of one height, sums over the length in one order."""

import torch
import torch.nn.functional as F

from penstock_kernels.gpu.grouped_mlp import ExpertLayer, expert_linear
from penstock_kernels.gpu.routing import ExpertTiles
from penstock_kernels.gpu.tiles import expert_tile


def linear(
    x: torch.Tensor, weights: tuple[torch.Tensor, ...], bias: torch.Tensor | None, invariant: bool
) -> torch.Tensor:
    assert invariant, "other products are those of PyTorch"
    counts = [weight.shape[0] for weight in weights]
    biases = [None] * len(weights) if bias is None else torch.split(bias, counts)
    parts = [_product(x, weight, its_bias) for weight, its_bias in zip(weights, biases, strict=True)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The product of experts with a single expert, which gets all rows in their order."""
    num_rows = x.shape[0]
    if x.numel() == 0:
        return F.linear(x, weight, bias)
    tile = expert_tile(None, x.element_size())
    order = torch.arange(num_rows, dtype=torch.int32, device=x.device)
    starts = order[:: tile.rows]
    tiles = torch.stack((torch.zeros_like(starts), starts, (starts + tile.rows).clamp(max=num_rows)), dim=1)
    layer = ExpertLayer(weight[None], None if bias is None else bias[None])
    return expert_linear(x, layer, ExpertTiles(order, tiles, tile.rows), tile, 1)
