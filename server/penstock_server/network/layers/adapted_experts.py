"""Experts with adapters: what the adapter of each row adds to both products of every expert that the row chose."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from penstock_kernels import AdapterRows, AdapterTable, AdapterWeights, add_adapters
from penstock_kernels.reference.grouped_mlp import pairs_by_expert, sum_of_pairs

from penstock_server.network.layers.expert_share import ExpertShare

# The rows of one expert, and its number among those that are here.
Product = Callable[[torch.Tensor, int], torch.Tensor]


class ExpertMatrices(NamedTuple):
    """One adapter's change of one product of all experts that are here; see `AdapterWeights`."""

    down: torch.Tensor  # [num_experts, rank, len]
    up: torch.Tensor  # [num_experts, width, num_columns]
    first: torch.Tensor  # [num_columns] int32
    factor: torch.Tensor | None = None  # [num_experts, num_columns] float32

    def to(self, device: torch.device) -> "ExpertMatrices":
        """The matrices on a device."""
        return ExpertMatrices(*(None if it is None else it.to(device, non_blocking=True) for it in self))  # type: ignore[arg-type]

    def pinned(self) -> "ExpertMatrices":
        """In memory from which a GPU copies by itself."""
        return ExpertMatrices(*(None if it is None else it.pin_memory() for it in self))  # type: ignore[arg-type]

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        return sum(it.nbytes for it in self if it is not None)

    def of_each(self) -> list[AdapterWeights]:
        """The matrices of each expert: views."""
        factors = [None] * len(self.down) if self.factor is None else [*self.factor]
        each = zip(self.down, self.up, factors, strict=True)
        return [AdapterWeights(down, up, self.first, factor) for down, up, factor in each]


class ExpertWeights(NamedTuple):
    """One adapter's change of the experts of a layer; None: it does not change this product."""

    gate_up: ExpertMatrices | None
    down: ExpertMatrices | None

    def to(self, device: torch.device) -> "ExpertWeights":
        """The matrices on a device."""
        return ExpertWeights(*(None if it is None else it.to(device) for it in self))

    def pinned(self) -> "ExpertWeights":
        """In memory from which a GPU copies by itself."""
        return ExpertWeights(*(None if it is None else it.pinned() for it in self))

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        return sum(it.num_bytes for it in self if it is not None)

    @property
    def rank(self) -> int:
        """The largest of both."""
        return max(it.up.shape[1] for it in self if it is not None)


class ExpertTables:
    """The adapters of a layer's experts that are here: `number * num_experts + expert` is an entry of both tables."""

    def __init__(self, num_adapters: int, share: ExpertShare, device: torch.device) -> None:
        self.share = share
        self.num_experts = num_experts = len(share.experts)
        self._device = device
        self._tables = tuple(AdapterTable(num_adapters * num_experts, device) for _ in range(2))
        self._used: set[int] = set()

    def __bool__(self) -> bool:
        """Whether any adapter does anything to these experts."""
        return bool(self._used)

    def has(self, number: int) -> bool:
        """Whether this one does."""
        return number in self._used

    def place(self, number: int, weights: ExpertWeights | None) -> None:
        """Put an adapter's part under a number; None: it does nothing here."""
        found = ExpertWeights(None, None) if weights is None else weights.to(self._device)
        for table, matrices in zip(self._tables if self.num_experts else (), found, strict=False):
            entries = [None] * self.num_experts if matrices is None else matrices.of_each()
            table.place_all(number * self.num_experts, entries)
        (self._used.discard if weights is None else self._used.add)(number)

    def apply(
        self,
        x: torch.Tensor,
        chosen: torch.Tensor,
        weights: torch.Tensor,
        adapters: AdapterRows,
        products: tuple[Product, Product],
        activate: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """Computes `grouped_mlp` with adapters; `products`: its products; `adapters`: as in `ForwardInput`."""
        order, counts = pairs_by_expert(chosen, self.num_experts, self.share.part)
        if not len(order):
            return torch.zeros_like(x)
        rows = order // chosen.shape[1]
        of_row, experts = adapters.numbers[rows], chosen.flatten()[order] - self.share.experts.start
        entries = AdapterRows(torch.where(of_row < 0, -1, of_row * self.num_experts + experts))
        ups, downs = self._tables
        found = activate(_product(x[rows], counts, entries, products[0], ups))
        found = _product(found, counts, entries, products[1], downs)
        return sum_of_pairs(found, order, weights)


def _product(
    x: torch.Tensor, counts: list[int], entries: AdapterRows, product: Product, adapters: AdapterTable
) -> torch.Tensor:
    """Rows that are sorted by expert."""
    parts = enumerate(torch.split(x, counts))
    output = torch.cat([product(part, expert) for expert, part in parts if len(part)])
    return add_adapters(output, x, entries, adapters)
