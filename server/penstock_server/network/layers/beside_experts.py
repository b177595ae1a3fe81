"""A dense feed-forward with experts beside it: both have norms of their own, and the experts read what the dense one
reads before its norm."""

from collections.abc import Iterator

import torch
from penstock_kernels import AdapterRows, Routing, embedding, rms_norm, route
from torch import nn

from penstock_server.architectures.spec import ModelSpec
from penstock_server.network.layers.feed_forward import FeedForward
from penstock_server.network.layers.moe import Experts, Router
from penstock_server.network.layers.norm import Norm
from penstock_server.network.layers.placement import Placement
from penstock_server.network.weights import Has, Piece


class FeedForwardBesideExperts(nn.Module):
    """The sum of both."""

    def __init__(self, spec: ModelSpec, layer: int, placement: Placement) -> None:
        super().__init__()
        assert spec.moe is not None, "a sparse layer has experts"
        names, prefix = spec.names, spec.names.layer.format(layer)

        def norm(name: str) -> Norm:
            return Norm(prefix + name, spec.hidden_size, spec.norm, placement)

        self.dense = FeedForward(spec, layer, placement)
        self.dense_norm = norm(names.dense_output_norm)
        self.router = ScaledRouter(spec, prefix, placement)
        self.input_norm = norm(names.experts_input_norm)
        self.experts = Experts(spec, spec.moe, prefix, placement)
        self.output_norm = norm(names.experts_output_norm)
        self.group = placement.group

    def forward(self, x: torch.Tensor, before: torch.Tensor, adapters: AdapterRows | None) -> torch.Tensor:
        """`before`: x before its norm."""
        dense = self.dense_norm(self.dense(x, adapters), adapters=adapters)
        weights, chosen = self.router(before, adapters)
        given = self.experts(self.input_norm(before, adapters=adapters), chosen, weights, adapters)
        return dense + self.output_norm(self.group.all_reduce(given), adapters=adapters)  # type: ignore[no-any-return]

    def leave_share(self) -> bool:
        """See `RowLinear`: False, as norms stand behind both parts."""
        return False


class ScaledRouter(nn.Module):
    """Chooses by the normed direction of the hidden states, each number times a weight; experts have factors."""

    scale: torch.Tensor
    factors: torch.Tensor

    def __init__(self, spec: ModelSpec, prefix: str, placement: Placement) -> None:
        super().__init__()
        assert spec.moe is not None, "it has experts"
        self.moe, self.eps = spec.moe, spec.norm.eps
        self.names = (prefix + spec.names.router_scale, prefix + spec.names.expert_scale)
        self.router = Router(spec, spec.moe, prefix, placement)
        self.routing = Routing(*spec.moe.routing)
        self.size_scale = spec.hidden_size**-0.5
        self.register_buffer("scale", placement.empty(spec.hidden_size))
        # A row for each expert, of the type of the weights that they multiply.
        self.register_buffer("factors", torch.empty(spec.moe.num_experts, 1, dtype=torch.float32))

    def forward(self, x: torch.Tensor, adapters: AdapterRows | None) -> tuple[torch.Tensor, torch.Tensor]:
        """[num_tokens, hidden_size] to the weights and numbers of the chosen experts."""
        normed = rms_norm(x, self.scale, self.eps) * self.size_scale
        logits, correction = self.router(normed, adapters)
        weights, chosen = route(logits, self.moe.top_k, self.moe.normalized, correction, self.routing)
        factors = embedding(chosen.flatten(), self.factors).view_as(weights)
        return weights * factors, chosen

    def pieces(self, has: Has) -> Iterator[Piece]:
        for name, attribute, arrange in zip(
            self.names, ("scale", "factors"), (None, _as_column), strict=True
        ):
            everything = slice(0, len(getattr(self, attribute)))
            yield Piece(name, (everything.stop,), self, attribute, (everything,), everything, arrange)


def _as_column(factors: torch.Tensor) -> torch.Tensor:
    return factors[:, None]
