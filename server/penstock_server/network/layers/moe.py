"""The sparse feed-forward layer: a router sends every token to a few experts.

Every rank routes all tokens, and computes its part of the experts (`expert_share`): a slice of every expert, so that
ranks have equal work, whichever experts are chosen, or whole experts. The sum over all ranks is the same.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from penstock_kernels import (
    AdapterRows,
    ExpertMatrices,
    Matrix,
    Routing,
    captures_experts,
    gate_by_sigmoid,
    grouped_mlp,
    linear,
    quantized_grouped_mlp,
    quantized_linear,
    route,
    route_near,
)
from torch import nn

from penstock_server.architectures.spec import ModelSpec, MoeSpec
from penstock_server.network.layers.adapted_experts import ExpertTables
from penstock_server.network.layers.expert_share import share_experts
from penstock_server.network.layers.feed_forward import activation, gate_up_rows
from penstock_server.network.layers.linear import ColumnLinear, RowLinear, Rows, share_rows
from penstock_server.network.layers.placement import Placement
from penstock_server.network.quantization.scheme import MatrixPart, Source
from penstock_server.network.weights import Has, Index, Piece


class SparseFeedForward(nn.Module):
    """Router, experts, and the shared expert where there is one."""

    # See `RowLinear`.
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
        if self.moe.distance is None:
            weights, chosen = route(logits, self.moe.top_k, self.moe.normalized, correction, self.routing)
        else:
            weights, chosen = route_near(logits, self.moe.top_k, self.moe.distance)
        compute = self._of_weighed if self.moe.weighs_inputs else self.experts
        output = compute(x, chosen, weights, adapters)
        if self.leaves_share:
            return output
        output = self.group.all_reduce(output)
        if self.shared is None:
            return output
        both = output.add_(self.shared(x, adapters))
        return both * 0.5 if self.moe.averages_shared else both

    def leave_share(self) -> bool:
        """See `RowLinear`: a shared expert adds up its own share."""
        self.leaves_share = self.group.size > 1 and self.shared is None
        return self.leaves_share

    def _of_weighed(
        self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, adapters: AdapterRows | None
    ) -> torch.Tensor:
        """The experts' output for inputs that are multiplied by the weights of their choices: a row for each choice."""
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
    """This rank's part of all experts of a layer: tokens are sorted by expert, and each multiplied once."""

    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None
    # The matrices in the place of either weight where any expert is quantized, also of another rank: for every expert
    # the parts of its gate and up projection, and its down projection.
    gate_up_matrices: ExpertMatrices[tuple[Matrix, ...]] | None = None
    down_matrices: ExpertMatrices[Matrix] | None = None

    def __init__(self, spec: ModelSpec, moe: MoeSpec, prefix: str, placement: Placement) -> None:
        super().__init__()
        self.moe = moe
        self.names = spec.names
        self.prefix = prefix
        self.hidden_size = spec.hidden_size
        self.placement = placement
        self.activate = activation(spec)
        self.share = share_experts(moe, placement)
        # Experts and inner numbers that are here.
        self.count, self.size = len(self.share.experts), len(self.share.inner)
        # A gate and a way up, or only that.
        self.num_ups = 2 if spec.gated else 1
        count, hidden, ups = self.count, spec.hidden_size, self.num_ups * self.size
        self.register_buffer("gate_up", placement.empty(count, ups, hidden))
        self.register_buffer("gate_up_bias", placement.empty(count, ups) if moe.bias else None)
        self.register_buffer("down", placement.empty(count, hidden, self.size))
        # Added once, not by every rank that has a slice.
        has_bias = moe.bias and (placement.expert_parallel or placement.group.rank == 0)
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
        biases = self.gate_up_bias, self.down_bias
        rest = self.activate, *biases, self.placement.batch_invariant, self.share.part
        if self.is_quantized:
            gate_up, down = self._matrices()
            return quantized_grouped_mlp(x, chosen, weights, gate_up, down, *rest)
        return grouped_mlp(x, chosen, weights, self.gate_up, self.down, *rest)

    def _product_of_ups(self, x: torch.Tensor, expert: int) -> torch.Tensor:
        bias = None if self.gate_up_bias is None else self.gate_up_bias[expert]
        ups = self.gate_up_matrices
        return self._product(x, (self.gate_up[expert],) if ups is None else ups[expert], bias)

    def _product_of_down(self, x: torch.Tensor, expert: int) -> torch.Tensor:
        bias = None if self.down_bias is None else self.down_bias[expert]
        down = self.down if self.down_matrices is None else self.down_matrices
        return self._product(x, (down[expert],), bias)

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
        return self.gate_up_matrices is not None or self.down_matrices is not None

    def captures(self, device: torch.device) -> bool:
        """Whether a step on this device asks nothing on the host for them."""
        return not self.is_quantized or captures_experts(device, *self._matrices())

    def _matrices(self) -> tuple[tuple[tuple[Matrix, ...], ...], tuple[Matrix, ...]]:
        """The matrices of all experts that are here, where some are quantized."""
        ups, down = self.gate_up_matrices, self.down_matrices
        gate_up = tuple((matrix,) for matrix in self.gate_up) if ups is None else ups
        return gate_up, tuple(self.down) if down is None else down

    def take_matrices(self, attribute: str, found: tuple[Matrix, ...]) -> None:
        """See `TakesMatrices`; pieces come expert by expert."""
        if attribute == "down":
            self.down_matrices = ExpertMatrices(found)
        else:
            each = len(found) // max(self.count, 1)
            starts = range(0, len(found), max(each, 1))
            self.gate_up_matrices = ExpertMatrices(found[first : first + each] for first in starts)

    def pieces(self, has: Has) -> Iterator[Piece]:
        """An expert at a time, so that only one expert is in memory twice. Those of other ranks are only checked."""
        is_stacked = self.moe.interleaved or has(self.prefix + self.names.experts_gate_up)
        for expert in range(self.moe.num_experts):
            if self.moe.interleaved:
                pieces = self._interleaved(expert)
            elif self.moe.inputs_first:
                pieces = self._transposed(expert)
            elif self.moe.flat:
                pieces = self._flat(expert)
            elif is_stacked:
                pieces = self._stacked(expert)
            else:
                pieces = self._split(expert)
            is_here = expert in self.share.experts
            yield from (piece if is_here else replace(piece, is_elsewhere=True) for piece in pieces)

    def _place(self, expert: int) -> slice:
        """The place of an expert among those that are here."""
        place = expert - self.share.experts.start
        return slice(place, place + 1)

    def _split(self, expert: int) -> Iterator[Piece]:
        size, hidden, mine = self.moe.expert_size, slice(0, self.hidden_size), self._of_inner()
        names, place = self.names, self._place(expert).start
        ways = (names.expert_gate, names.expert_up)[-self.num_ups :]
        for name, row in zip(ways, (0, self.size), strict=False):
            target = (place, slice(row, row + self.size))
            name = f"{self.prefix}{name.format(expert)}"
            yield self._module(name, (size, self.hidden_size), "gate_up", (mine, hidden), target)
        name = f"{self.prefix}{names.expert_down.format(expert)}"
        yield self._module(name, (self.hidden_size, size), "down", (hidden, mine), place)

    def _module(
        self, name: str, shape: tuple[int, int], attribute: str, window: tuple[slice, slice], index: Index
    ) -> Piece:
        """A part of the matrix of a module of an expert."""
        matrices = (MatrixPart(Source(name, shape), *window),)
        return Piece(f"{name}.weight", shape, self, attribute, window, index, matrices=matrices)

    def _stacked(self, expert: int) -> Iterator[Piece]:
        count, size, hidden = self.moe.num_experts, self.moe.expert_size, self.hidden_size
        one, place, whole = slice(expert, expert + 1), self._place(expert), slice(0, hidden)
        gate_up, down = self._sources(expert)
        for part in range(self.num_ups):
            rows = self._of_inner(part * size)
            target = (place, slice(part * self.size, (part + 1) * self.size))
            matrices = (MatrixPart(gate_up, rows, whole),)
            shape = (count, self.num_ups * size, hidden)
            yield Piece(gate_up.name, shape, self, "gate_up", (one, rows, whole), target, matrices=matrices)
        columns = self._of_inner()
        matrices = (MatrixPart(down, whole, columns),)
        shape = (count, hidden, size)
        yield Piece(down.name, shape, self, "down", (one, whole, columns), place, matrices=matrices)

    def _of_inner(self, first: int = 0) -> slice:
        """The inner numbers that are here, of a tensor that has all of them from `first` on."""
        return slice(first + self.share.inner.start, first + self.share.inner.stop)

    def _transposed(self, expert: int) -> Iterator[Piece]:
        """The pieces of `_stacked`, from tensors with inputs first."""
        count, size, hidden = self.moe.num_experts, self.moe.expert_size, self.hidden_size
        one, place, whole = slice(expert, expert + 1), self._place(expert), slice(0, hidden)
        gate_up, down = self._sources(expert)
        for part in range(2):
            rows = self._of_inner(part * size)
            target = (place, slice(part * self.size, (part + 1) * self.size))
            shape, matrices = (count, hidden, 2 * size), (MatrixPart(gate_up, rows, whole),)
            window = (one, whole, rows)
            yield Piece(gate_up.name, shape, self, "gate_up", window, target, _turned, matrices=matrices)
        shape, window = (count, size, hidden), (one, self._of_inner(), whole)
        matrices = (MatrixPart(down, whole, self._of_inner()),)
        yield Piece(down.name, shape, self, "down", window, place, _turned, matrices=matrices)

    def _flat(self, expert: int) -> Iterator[Piece]:
        """Rows of three tensors, of which the last one has inputs first."""
        count, size, hidden, names = self.moe.num_experts, self.moe.expert_size, self.hidden_size, self.names
        shape, whole, place = (count * size, hidden), slice(0, hidden), self._place(expert).start
        window = (self._of_inner(expert * size), whole)
        ways = (names.expert_gate, names.expert_up)[-self.num_ups :]
        for name, row in zip(ways, (0, self.size), strict=False):
            source = Source(self.prefix + name, (size, hidden), expert, count, is_flat=True)
            matrices = (MatrixPart(source, self._of_inner(), whole),)
            target = (place, slice(row, row + self.size))
            yield Piece(source.name, shape, self, "gate_up", window, target, matrices=matrices)
        name = self.prefix + names.expert_down
        source = Source(name, (hidden, size), expert, count, is_flat=True, inputs_first=True)
        matrices = (MatrixPart(source, whole, self._of_inner()),)
        yield Piece(source.name, shape, self, "down", window, place, torch.t, matrices=matrices)

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
        one, place, whole = slice(expert, expert + 1), self._place(expert), slice(0, hidden)
        start, stop = self.share.inner.start, self.share.inner.stop
        pairs, (gate_up, down) = slice(2 * start, 2 * stop), self._sources(expert)
        shape, window = (count, hidden, 2 * size), (one, whole, pairs)
        # Gates, then the others.
        halves = tuple(MatrixPart(gate_up, slice(2 * start + odd, 2 * stop, 2), whole) for odd in (0, 1))
        yield Piece(gate_up.name, shape, self, "gate_up", window, place, _gates_first, matrices=halves)
        shape, window = (count, size, hidden), (one, slice(start, stop), whole)
        columns = (MatrixPart(down, whole, slice(start, stop)),)
        yield Piece(down.name, shape, self, "down", window, place, _turned, matrices=columns)
        if self.moe.bias:
            yield Piece(
                f"{gate_up.name}_bias",
                (count, 2 * size),
                self,
                "gate_up_bias",
                (one, pairs),
                place,
                _even_first,
            )
        if self.down_bias is not None:
            yield Piece(f"{down.name}_bias", (count, hidden), self, "down_bias", (one, whole), place)


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
        return out if self.gate is None else gate_by_sigmoid(out, self.gate(x, adapters))


def _whole(name: str, size: int, bias: bool, spec: ModelSpec, placement: Placement) -> ColumnLinear:
    """A small projection that every rank computes whole."""
    return ColumnLinear([[Rows(name, size, 0, size)]], spec.hidden_size, bias, placement, is_sensitive=True)


def _turned(part: torch.Tensor) -> torch.Tensor:
    return part.transpose(1, 2)


def _gates_first(part: torch.Tensor) -> torch.Tensor:
    return torch.cat((part[..., 0::2], part[..., 1::2]), dim=-1).transpose(1, 2)


def _even_first(part: torch.Tensor) -> torch.Tensor:
    return torch.cat((part[..., 0::2], part[..., 1::2]), dim=-1)
