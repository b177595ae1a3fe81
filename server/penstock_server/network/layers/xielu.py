"""xIELU, the activation of Apertus: a parabola above 0 and an exponential below, each with a learned strength."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

from penstock_server.network.layers.placement import Placement
from penstock_server.network.weights import Has, Piece

_BETA = 0.5
# The largest argument of the exponential: just below 0.
_CEILING = -1e-6


class Xielu(nn.Module):
    """[num_tokens, size] to the same; every rank has both strengths."""

    alpha_p: torch.Tensor
    alpha_n: torch.Tensor

    def __init__(self, name: str, placement: Placement) -> None:
        super().__init__()
        self.name = name
        self.register_buffer("alpha_p", placement.empty(1))
        self.register_buffer("alpha_n", placement.empty(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        above, below = F.softplus(self.alpha_p), F.softplus(self.alpha_n) + _BETA
        bent = torch.where(x > 0, above * x * x, (torch.expm1(x.clamp(max=_CEILING)) - x) * below)
        return bent + _BETA * x

    def pieces(self, has: Has) -> Iterator[Piece]:
        whole = slice(0, 1)
        for attribute in ("alpha_p", "alpha_n"):
            yield Piece(f"{self.name}.{attribute}", (1,), self, attribute, (whole,), whole)
