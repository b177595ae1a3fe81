"""The sparse feed-forward layer: a router sends every token to a few experts.

Every rank has a part of every expert: ranks have equal work, whichever experts are chosen.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from penstock_kernels import (
    AdapterRows,
    Matrix,
    Routing,
    grouped_mlp,
    linear,
    quantized_grouped_mlp,
    quantized_linear,
    route,
)
from torch import nn

from penstock_server.architectures.spec import ModelSpec, MoeSpec
from penstock_server.network.layers.adapted_experts import ExpertTables
from penstock_server.network.layers.feed_forward import activation, gate_up_rows
from penstock_server.network.layers.linear import ColumnLinear, RowLinear, Rows, share_rows
from penstock_server.network.layers.placement import Placement
from penstock_server.network.quantization.scheme import MatrixPart, Source
from penstock_server.network.weights import Has, Index, Piece


class SparseFeedForward(nn.Module):
    """Router, experts, and the shared expert where there is one."""

    # As in `RowLinear`.
    leaves_share = False

    def __init__(self, spec: ModelSpec, layer: int, placement: Placement) -> None:
        super().__init__()
        assert spec.moe is not None, "a sparse layer has experts"
        prefix = spec.names.layer.format(layer)
        self.moe = spec.moe
        self.group = placement.group
        self.routing = Routing(*spec.moe.routing)
        self.router = Router(spec, spec.moe, prefix, placement)
        self.experts = Experts(spec, spec.moe, prefix, placement)
        self.shared = SharedExpert(spec, spec.moe, prefix, placement) if spec.moe.shared_size else None

    def forward(self, x: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        logits, correction = self.router(x, adapters)
        weights, chosen = route(logits, self.moe.top_k, self.moe.normalized, correction, self.routing)
        compute = self._of_weighed if self.moe.weighs_inputs else self.experts
        output = compute(x, chosen, weights, adapters)
        if self.leaves_share:
            return output
        output = self.group.all_reduce(output)
        return output if self.shared is None else output.add_(self.shared(x, adapters))

    def leave_share(self) -> bool:
        """As in `RowLinear`: a shared expert adds up its own."""
        self.leaves_share = self.group.size > 1 and self.shared is None
        return self.leaves_share

    def _of_weighed(
        self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, adapters: AdapterRows | None
    ) -> torch.Tensor:
        """Of inputs that are multiplied by the weights of their choices: a row for each choice."""
        count = chosen.shape[1]
        rows = (x.unsqueeze(1) * weights.to(x.dtype).unsqueeze(2)).flatten(0, 1)
        if adapters is not None:
            adapters = adapters.each(count)
        given: torch.Tensor = self.experts(
            rows, chosen.view(-1, 1), torch.ones_like(weights).view(-1, 1), adapters
        )
        return given if count == 1 else given.view(len(x), count, -1).sum(1)


class Router(nn.Module):
    """The scores of all experts, on every rank, and what is added to them for the choice."""

    correction: torch.Tensor | None

    def __init__(self, spec: ModelSpec, moe: MoeSpec, prefix: str, placement: Placement) -> None:
        super().__init__()
        self.moe = moe
        self.name = prefix + spec.names.router_correction
        wide = replace(placement, dtype=torch.float32) if moe.wide_router else placement
        self.project = _whole(prefix + spec.names.router, moe.num_experts, moe.bias, spec, wide)
        self.dtype = wide.dtype
        has_correction = moe.correction_dims > 0
        self.register_buffer(
            "correction", torch.empty(moe.num_experts, dtype=torch.float32) if has_correction else None
        )

    def forward(
        self, x: torch.Tensor, adapters: AdapterRows | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self.project(x.to(self.dtype), adapters), self.correction

    def pieces(self, has: Has) -> Iterator[Piece]:
        if self.correction is None:
            return
        everything, dims = slice(0, self.moe.num_experts), self.moe.correction_dims
        shape = (1,) * (dims - 1) + (self.moe.num_experts,)
        window = (slice(0, 1),) * (dims - 1) + (everything,)
        yield Piece(self.name, shape, self, "correction", window, everything, torch.flatten)


class Experts(nn.Module):
    """All experts of a layer, this rank's part of each: tokens are sorted by expert, and each multiplied once."""

    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None
    # What takes the place of both where any expert is quantized: for every expert the parts of its gate and up
    # projection, and its last.
    gate_up_matrices: tuple[tuple[Matrix, ...], ...] = ()
    down_matrices: tuple[Matrix, ...] = ()

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
        # A gate and a way up, or only that.
        self.num_ups = 2 if spec.gated else 1
        ups = self.num_ups * self.share
        self.register_buffer("gate_up", placement.empty(count, ups, hidden))
        self.register_buffer("gate_up_bias", placement.empty(count, ups) if moe.bias else None)
        self.register_buffer("down", placement.empty(count, hidden, self.share))
        # Added once, not by every rank.
        has_bias = moe.bias and placement.group.rank == 0
        self.register_buffer("down_bias", placement.empty(count, hidden) if has_bias else None)
        # None until the model is to have adapters.
        self.adapters: ExpertTables | None = None

    def forward(
        self,
        x: torch.Tensor,
        chosen: torch.Tensor,
        weights: torch.Tensor,
        adapters: AdapterRows | None = None,
    ) -> torch.Tensor:
        """`adapters`: as `ForwardInput.adapters`."""
        if adapters is not None and self.adapters:
            products = self._product_of_ups, self._product_of_down
            return self.adapters.apply(x, chosen, weights, adapters, products, self.activate)
        rest = self.activate, self.gate_up_bias, self.down_bias, self.placement.batch_invariant
        if self.is_quantized:
            gate_up = self.gate_up_matrices or tuple((matrix,) for matrix in self.gate_up)
            down = self.down_matrices or tuple(self.down)
            return quantized_grouped_mlp(x, chosen, weights, gate_up, down, *rest)
        return grouped_mlp(x, chosen, weights, self.gate_up, self.down, *rest)

    def _product_of_ups(self, x: torch.Tensor, expert: int) -> torch.Tensor:
        bias = None if self.gate_up_bias is None else self.gate_up_bias[expert]
        matrices = self.gate_up_matrices[expert] if self.gate_up_matrices else (self.gate_up[expert],)
        return self._product(x, matrices, bias)

    def _product_of_down(self, x: torch.Tensor, expert: int) -> torch.Tensor:
        bias = None if self.down_bias is None else self.down_bias[expert]
        return self._product(x, ((self.down_matrices or self.down)[expert],), bias)

    def _product(
        self, x: torch.Tensor, matrices: tuple[Matrix, ...], bias: torch.Tensor | None
    ) -> torch.Tensor:
        invariant = self.placement.batch_invariant
        if self.is_quantized:
            return quantized_linear(x, matrices, bias, invariant)
        return linear(x, matrices[0], bias, invariant)  # type: ignore[arg-type]

    @property
    def is_quantized(self) -> bool:
        """Whether any of their matrices is."""
        return bool(self.gate_up_matrices or self.down_matrices)

    def take_matrices(self, attribute: str, found: tuple[Matrix, ...]) -> None:
        """As `TakesMatrices`; pieces come expert by expert."""
        if attribute == "down":
            self.down_matrices = found
        else:
            each = len(found) // self.moe.num_experts
            self.gate_up_matrices = tuple(found[first : first + each] for first in range(0, len(found), each))

    def pieces(self, has: Has) -> Iterator[Piece]:
        """An expert at a time, so that only one expert is in memory twice."""
        is_stacked = self.moe.interleaved or has(self.prefix + self.names.experts_gate_up)
        for expert in range(self.moe.num_experts):
            if self.moe.interleaved:
                yield from self._interleaved(expert)
            elif self.moe.inputs_first:
                yield from self._transposed(expert)
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
        ways = (names.expert_gate, names.expert_up)[-self.num_ups :]
        for name, row in zip(ways, (0, self.share), strict=False):
            target = (expert, slice(row, row + self.share))
            name = f"{self.prefix}{name.format(expert)}"
            yield self._module(name, (size, self.hidden_size), "gate_up", (mine, hidden), target)
        name = f"{self.prefix}{names.expert_down.format(expert)}"
        yield self._module(name, (self.hidden_size, size), "down", (hidden, mine), expert)

    def _module(
        self, name: str, shape: tuple[int, int], attribute: str, window: tuple[slice, slice], index: Index
    ) -> Piece:
        """A part of the matrix of a module of an expert."""
        matrices = (MatrixPart(Source(name, shape), *window),)
        return Piece(f"{name}.weight", shape, self, attribute, window, index, matrices=matrices)

    def _stacked(self, expert: int) -> Iterator[Piece]:
        count, size, hidden = self.moe.num_experts, self.moe.expert_size, self.hidden_size
        one, whole, (start, stop) = slice(expert, expert + 1), slice(0, hidden), self._part
        gate_up, down = self._sources(expert)
        for part in range(self.num_ups):
            first, row = part * size, part * self.share
            rows = slice(first + start, first + stop)
            target = (one, slice(row, row + self.share))
            matrices = (MatrixPart(gate_up, rows, whole),)
            shape = (count, self.num_ups * size, hidden)
            yield Piece(gate_up.name, shape, self, "gate_up", (one, rows, whole), target, matrices=matrices)
        columns = slice(start, stop)
        matrices = (MatrixPart(down, whole, columns),)
        shape = (count, hidden, size)
        yield Piece(down.name, shape, self, "down", (one, whole, columns), one, matrices=matrices)

    def _transposed(self, expert: int) -> Iterator[Piece]:
        """As `_stacked`, of tensors with inputs first."""
        count, size, hidden = self.moe.num_experts, self.moe.expert_size, self.hidden_size
        one, whole, (start, stop) = slice(expert, expert + 1), slice(0, hidden), self._part
        gate_up, down = self._sources(expert)
        for part in range(2):
            rows = slice(part * size + start, part * size + stop)
            target = (one, slice(part * self.share, (part + 1) * self.share))
            shape, matrices = (count, hidden, 2 * size), (MatrixPart(gate_up, rows, whole),)
            window = (one, whole, rows)
            yield Piece(gate_up.name, shape, self, "gate_up", window, target, _turned, matrices=matrices)
        shape, window = (count, size, hidden), (one, slice(start, stop), whole)
        matrices = (MatrixPart(down, whole, slice(start, stop)),)
        yield Piece(down.name, shape, self, "down", window, one, _turned, matrices=matrices)

    def _sources(self, expert: int) -> tuple[Source, Source]:
        """Both matrices of an expert where the checkpoint has those of all in one tensor."""
        size, hidden, names = self.moe.expert_size, self.hidden_size, self.names
        which = expert, self.moe.num_experts, self.moe.interleaved or self.moe.inputs_first
        return (
            Source(self.prefix + names.experts_gate_up, (self.num_ups * size, hidden), *which),
            Source(self.prefix + names.experts_down, (hidden, size), *which),
        )

    def _interleaved(self, expert: int) -> Iterator[Piece]:
        count, size, hidden = self.moe.num_experts, self.moe.expert_size, self.hidden_size
        one, whole, (start, stop) = slice(expert, expert + 1), slice(0, hidden), self._part
        pairs, (gate_up, down) = slice(2 * start, 2 * stop), self._sources(expert)
        shape, window = (count, hidden, 2 * size), (one, whole, pairs)
        # Gates, then the others.
        halves = tuple(MatrixPart(gate_up, slice(2 * start + odd, 2 * stop, 2), whole) for odd in (0, 1))
        yield Piece(gate_up.name, shape, self, "gate_up", window, one, _gates_first, matrices=halves)
        shape, window = (count, size, hidden), (one, slice(start, stop), whole)
        columns = (MatrixPart(down, whole, slice(start, stop)),)
        yield Piece(down.name, shape, self, "down", window, one, _turned, matrices=columns)
        if self.moe.bias:
            yield Piece(
                f"{gate_up.name}_bias",
                (count, 2 * size),
                self,
                "gate_up_bias",
                (one, pairs),
                one,
                _even_first,
            )
        if self.down_bias is not None:
            yield Piece(f"{down.name}_bias", (count, hidden), self, "down_bias", (one, whole), one)


class SharedExpert(nn.Module):
    """The expert that every token goes to, weighted by a gate of its own where it has one."""

    def __init__(self, spec: ModelSpec, moe: MoeSpec, prefix: str, placement: Placement) -> None:
        super().__init__()
        names, size = spec.names, moe.shared_size
        if spec.gated:
            split = (names.shared_gate, names.shared_up)
            sources = gate_up_rows(prefix, split, names.shared_gate_up, size, placement)
        else:
            sources = [[share_rows(prefix + names.shared_up, size, placement)]]
        self.activate = activation(spec)
        self.up = ColumnLinear(sources, spec.hidden_size, False, placement)
        self.down = RowLinear(prefix + names.shared_down, size, spec.hidden_size, False, placement)
        gate = prefix + names.shared_router
        self.gate = _whole(gate, 1, False, spec, placement) if moe.gates_shared else None

    def forward(self, x: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        out: torch.Tensor = self.down(self.activate(self.up(x, adapters)), adapters)
        return out if self.gate is None else out.mul_(self.gate(x, adapters).sigmoid_())


def _whole(name: str, size: int, bias: bool, spec: ModelSpec, placement: Placement) -> ColumnLinear:
    """A small projection that every rank computes whole."""
    return ColumnLinear([[Rows(name, size, 0, size)]], spec.hidden_size, bias, placement, is_sensitive=True)


def _turned(part: torch.Tensor) -> torch.Tensor:
    return part.transpose(1, 2)


def _gates_first(part: torch.Tensor) -> torch.Tensor:
    return torch.cat((part[..., 0::2], part[..., 1::2]), dim=-1).transpose(1, 2)


def _even_first(part: torch.Tensor) -> torch.Tensor:
    return torch.cat((part[..., 0::2], part[..., 1::2]), dim=-1)
