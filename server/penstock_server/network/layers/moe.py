"""The sparse feed-forward layer: a router sends every token to a few experts.

Every rank has a part of every expert: ranks have equal work, whichever experts are chosen.
"""

from collections.abc import Iterator

import torch
from penstock_kernels import grouped_mlp, route
from torch import nn

from penstock_server.architectures.spec import ModelSpec, MoeSpec
from penstock_server.network.layers.feed_forward import activation, gate_up_rows
from penstock_server.network.layers.linear import ColumnLinear, RowLinear, Rows
from penstock_server.network.layers.placement import Placement
from penstock_server.network.weights import Has, Piece


class SparseFeedForward(nn.Module):
    """Router, experts, and the shared expert where there is one."""

    def __init__(self, spec: ModelSpec, layer: int, placement: Placement) -> None:
        super().__init__()
        assert spec.moe is not None, "a sparse layer has experts"
        prefix = spec.names.layer.format(layer)
        self.moe = spec.moe
        self.group = placement.group
        self.router = _whole(prefix + spec.names.router, spec.moe.num_experts, spec.moe.bias, spec, placement)
        self.experts = Experts(spec, spec.moe, prefix, placement)
        self.shared = SharedExpert(spec, spec.moe, prefix, placement) if spec.moe.shared_size else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = route(self.router(x), self.moe.top_k, self.moe.normalized)
        output = self.group.all_reduce(self.experts(x, chosen, weights))
        return output if self.shared is None else output + self.shared(x)


class Experts(nn.Module):
    """All experts of a layer, this rank's part of each: tokens are sorted by expert, and each multiplied once."""

    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None

    def __init__(self, spec: ModelSpec, moe: MoeSpec, prefix: str, placement: Placement) -> None:
        super().__init__()
        self.moe = moe
        self.names = spec.names
        self.prefix = prefix
        self.hidden_size = spec.hidden_size
        self.placement = placement
        self.activate = activation(spec)
        count, hidden = moe.num_experts, spec.hidden_size
        self.share = placement.group.share(moe.expert_size, "size of an expert")
        self.register_buffer("gate_up", placement.empty(count, 2 * self.share, hidden))
        self.register_buffer("gate_up_bias", placement.empty(count, 2 * self.share) if moe.bias else None)
        self.register_buffer("down", placement.empty(count, hidden, self.share))
        # Added once, not by every rank.
        has_bias = moe.bias and placement.group.rank == 0
        self.register_buffer("down_bias", placement.empty(count, hidden) if has_bias else None)

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return grouped_mlp(
            x,
            chosen,
            weights,
            self.gate_up,
            self.down,
            self.activate,
            self.gate_up_bias,
            self.down_bias,
            self.placement.batch_invariant,
        )

    def pieces(self, has: Has) -> Iterator[Piece]:
        """An expert at a time, so that only one expert is in memory twice."""
        is_stacked = self.moe.interleaved or has(self.prefix + self.names.experts_gate_up)
        for expert in range(self.moe.num_experts):
            if self.moe.interleaved:
                yield from self._interleaved(expert)
            elif is_stacked:
                yield from self._stacked(expert)
            else:
                yield from self._split(expert)

    @property
    def _part(self) -> tuple[int, int]:
        start = self.placement.group.rank * self.share
        return start, start + self.share

    def _split(self, expert: int) -> Iterator[Piece]:
        size, hidden, mine = self.moe.expert_size, slice(0, self.hidden_size), slice(*self._part)
        names = self.names
        for name, row in ((names.expert_gate, 0), (names.expert_up, self.share)):
            target = (expert, slice(row, row + self.share))
            name = f"{self.prefix}{name.format(expert)}.weight"
            yield Piece(name, (size, self.hidden_size), self, "gate_up", (mine, hidden), target)
        name = f"{self.prefix}{names.expert_down.format(expert)}.weight"
        yield Piece(name, (self.hidden_size, size), self, "down", (hidden, mine), expert)

    def _stacked(self, expert: int) -> Iterator[Piece]:
        count, size, hidden = self.moe.num_experts, self.moe.expert_size, self.hidden_size
        one, whole, (start, stop) = slice(expert, expert + 1), slice(0, hidden), self._part
        for first, row in ((0, 0), (size, self.share)):
            yield Piece(
                self.prefix + self.names.experts_gate_up,
                (count, 2 * size, hidden),
                self,
                "gate_up",
                (one, slice(first + start, first + stop), whole),
                (one, slice(row, row + self.share)),
            )
        name = self.prefix + self.names.experts_down
        yield Piece(name, (count, hidden, size), self, "down", (one, whole, slice(start, stop)), one)

    def _interleaved(self, expert: int) -> Iterator[Piece]:
        count, size, hidden = self.moe.num_experts, self.moe.expert_size, self.hidden_size
        one, whole, (start, stop) = slice(expert, expert + 1), slice(0, hidden), self._part
        pairs, gate_up = slice(2 * start, 2 * stop), self.prefix + self.names.experts_gate_up
        window = (one, whole, pairs)
        yield Piece(gate_up, (count, hidden, 2 * size), self, "gate_up", window, one, _gates_first)
        name = self.prefix + self.names.experts_down
        window = (one, slice(start, stop), whole)
        yield Piece(name, (count, size, hidden), self, "down", window, one, _turned)
        if self.moe.bias:
            yield Piece(
                f"{gate_up}_bias", (count, 2 * size), self, "gate_up_bias", (one, pairs), one, _even_first
            )
        if self.down_bias is not None:
            yield Piece(f"{name}_bias", (count, hidden), self, "down_bias", (one, whole), one)


class SharedExpert(nn.Module):
    """The expert that every token goes to, weighted by a gate of its own."""

    def __init__(self, spec: ModelSpec, moe: MoeSpec, prefix: str, placement: Placement) -> None:
        super().__init__()
        names, size = spec.names, moe.shared_size
        split = (names.shared_gate, names.shared_up)
        sources = gate_up_rows(prefix, split, "", size, placement)
        self.activate = activation(spec)
        self.up = ColumnLinear(sources, spec.hidden_size, False, placement)
        self.down = RowLinear(prefix + names.shared_down, size, spec.hidden_size, False, placement)
        self.gate = _whole(prefix + names.shared_router, 1, False, spec, placement)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(self.activate(self.up(x)))
        return out.mul_(self.gate(x).sigmoid_())


def _whole(name: str, size: int, bias: bool, spec: ModelSpec, placement: Placement) -> ColumnLinear:
    """A small projection that every rank computes whole."""
    return ColumnLinear([[Rows(name, size, 0, size)]], spec.hidden_size, bias, placement)


def _turned(part: torch.Tensor) -> torch.Tensor:
    return part.transpose(1, 2)


def _gates_first(part: torch.Tensor) -> torch.Tensor:
    return torch.cat((part[..., 0::2], part[..., 1::2]), dim=-1).transpose(1, 2)


def _even_first(part: torch.Tensor) -> torch.Tensor:
    return torch.cat((part[..., 0::2], part[..., 1::2]), dim=-1)
