"""Linear layers of a model of transformers that carry adapters: those that see each token of a step once, in order.

Which do, the trial of the model tells. What sees some of the tokens only, as modules of single experts do, and layers
of other kinds, carry none: an adapter for one of these is refused by its name.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from penstock_kernels import AdapterRows, AdapterTable
from torch import nn

from penstock_server.network.borrowed.parallel import SummedLinear
from penstock_server.network.layers.adapted import AdaptedPart, adapt
from penstock_server.network.layers.placement import Placement

# Modules of single experts, which see the tokens that chose them.
_OF_EXPERT = re.compile(r"experts?\.\d+\.")


class BorrowedEmbedding(NamedTuple):
    """The embeddings of the input, which carry no adapters."""

    name: str
    # Tokens, and numbers of each.
    shape: tuple[int, int]


class StepRows:
    """The rows that a model computes now. One model computes one step at a time."""

    def __init__(self) -> None:
        self.count = 0
        # See `ForwardInput.adapters`.
        self.adapters: AdapterRows | None = None
        # Whether layers note what they see.
        self.is_trial = False

    @contextmanager
    def of(self, count: int, adapters: AdapterRows | None) -> Iterator[None]:
        """While these rows are computed."""
        self.count, self.adapters = count, adapters
        try:
            yield
        finally:
            self.count, self.adapters = 0, None


class BorrowedLinear(nn.Module):
    """A linear layer of the model, as `AdaptedLayer`; it does its part whenever the model calls that layer."""

    def __init__(
        self, name: str, linear: Any, placement: Placement, rows: StepRows, is_head: bool, stored: str
    ) -> None:
        super().__init__()
        self.name = name
        self.is_head = is_head
        self.rows = rows
        # Some layers are of another type than the rest.
        self.placement = replace(placement, dtype=linear.weight.dtype)
        self.is_summed = isinstance(linear, SummedLinear)
        self.num_columns = linear.weight.shape[0]
        self.adapters: AdapterTable | None = None
        # Kept from the modules of this one: it is the model's.
        self._linear = (linear,)
        self._stored = stored
        # Whether each call of the trial had all rows.
        self.seen: list[bool] = []
        if self.is_summed:
            linear.adapt = self.add
        else:
            self._hook = linear.register_forward_hook(self._after)

    @property
    def bias(self) -> torch.Tensor | None:
        """The bias, as our own layers have it."""
        found: torch.Tensor | None = self._linear[0].bias
        return found

    def adapted_parts(self) -> list[list[AdaptedPart]]:
        """See `AdaptedLayer`."""
        linear, group = self._linear[0], self.placement.group
        num_outputs, num_inputs = linear.weight.shape
        size, rank = (group.size, group.rank) if hasattr(linear, "group") else (1, 0)
        outputs, inputs = slice(0, num_outputs), slice(0, num_inputs)
        if self.is_summed:
            inputs = slice(rank * num_inputs, (rank + 1) * num_inputs)
            num_inputs *= size
        elif size > 1:
            outputs = slice(rank * num_outputs, (rank + 1) * num_outputs)
            num_outputs *= size
        columns, shape = slice(0, self.num_columns), (num_outputs, num_inputs)
        part = AdaptedPart(self.name, shape, outputs, inputs, columns, is_head=self.is_head)
        return [[part._replace(stored=self._stored)]]

    def add(self, output: torch.Tensor, x: torch.Tensor) -> None:
        """Add to what the layer made of x what the adapters of its rows add, in place."""
        if self.rows.count == 0:
            return
        found = output.view(-1, self.num_columns)
        if self.rows.is_trial:
            self.seen.append(len(found) == self.rows.count)
        if self.rows.adapters is not None:
            if len(found) != self.rows.count:
                raise RuntimeError(f"{self.name} saw {len(found)} of {self.rows.count} rows")
            adapt(found, x.reshape(len(found), -1), self.rows.adapters, self.adapters)

    @property
    def sees_every_row(self) -> bool:
        """Whether it did in each call of the trial, of which there were some."""
        return bool(self.seen) and all(self.seen)

    def remove(self) -> None:
        """Leave the layer as it was."""
        if self.is_summed:
            self._linear[0].adapt = None
        else:
            self._hook.remove()

    def _after(self, _linear: nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        self.add(output, inputs[0])


class BorrowedLinears(nn.Module):
    """The linear layers of one model."""

    def __init__(self, model: Any, placement: Placement) -> None:
        super().__init__()
        self.rows = StepRows()
        self.dtype = placement.dtype
        tokens, head = model.get_input_embeddings(), model.get_output_embeddings()
        names = {id(module): name for name, module in model.named_modules()}
        self.embedding = BorrowedEmbedding(names[id(tokens)], tuple(tokens.weight.shape))
        found = []
        for name, module in model.named_modules():
            if type(module) in (nn.Linear, SummedLinear) and _OF_EXPERT.search(name) is None:
                is_tied = module is head and module.weight is tokens.weight
                stored = self.embedding.name if is_tied else ""
                found.append(BorrowedLinear(name, module, placement, self.rows, module is head, stored))
        self._keep(found)

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Keeps those that see every row in each of the calls that are made meanwhile, if nothing is raised."""
        self.rows.is_trial = True
        for linear in self.kept:
            linear.seen = []
        try:
            yield
        finally:
            self.rows.is_trial = False
        for linear in self.kept:
            if not linear.sees_every_row:
                linear.remove()
        self._keep([linear for linear in self.kept if linear.sees_every_row])

    def _keep(self, linears: list[BorrowedLinear]) -> None:
        self.kept = linears
        # So that who looks for them among the modules of the model finds them.
        self.modules_kept = nn.ModuleList(linears)
