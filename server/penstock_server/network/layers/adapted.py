"""Describes a linear layer, so that adapters can be made to fit it; and applies them."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from penstock_kernels import AdapterRows, AdapterTable, add_adapters

from penstock_server.network.layers.placement import Placement
from penstock_server.network.quantization.scheme import Arrange


class AdaptedPart(NamedTuple):
    """Outputs of one module of the model, as its checkpoint names it, that a layer computes on this rank."""

    module: str
    # The shape of the whole module: outputs first.
    shape: tuple[int, int]
    # The outputs and inputs of the module that are here, and the columns of the layer that the outputs become.
    outputs: slice
    inputs: slice
    columns: slice
    # Applied to the outputs, if their order changes.
    arrange: Arrange | None = None
    # Whether the checkpoint has the inputs first.
    transposed: bool = False
    # Whether it makes the logits.
    is_head: bool = False
    # The name of its weights in the checkpoint, if that is another.
    stored: str = ""


class AdaptedLayer(Protocol):
    """A layer that can carry adapters."""

    # None until the model is to have adapters.
    adapters: AdapterTable | None
    bias: torch.Tensor | None
    placement: Placement

    def adapted_parts(self) -> Sequence[Sequence[AdaptedPart]]:
        """The modules that it stands for. Where a checkpoint may keep them in several ways: each of these."""
        ...

    @property
    def num_columns(self) -> int:
        """Outputs of this rank."""
        ...

    @property
    def is_summed(self) -> bool:
        """Whether the ranks' outputs are added to each other, and the bias after that."""
        ...


def adapt(
    output: torch.Tensor, x: torch.Tensor, rows: AdapterRows | None, adapters: AdapterTable | None
) -> torch.Tensor:
    """`output` with what the rows' adapters add; nothing is computed in a step where no row has one."""
    if rows is None or adapters is None:
        return output
    return add_adapters(output, x, rows, adapters)
