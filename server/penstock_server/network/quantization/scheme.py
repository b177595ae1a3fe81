"""The seam between layers and formats: what a layer asks for, and what a format must answer."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from penstock_kernels import Quantized

from penstock_server.network.quantization.stored import Stored, Wanted


class Source(NamedTuple):
    """A whole matrix of a checkpoint: outputs first, whatever the order in the files."""

    # The name of the module, such as model.layers.0.mlp.down_proj.
    name: str
    shape: tuple[int, int]
    # Where the checkpoint has the matrices of all experts in one tensor: which one, and of how many.
    expert: int | None = None
    num_experts: int = 0
    # Whether the checkpoint has inputs first where it is in 16 bits.
    inputs_first: bool = False
    # Whether it stays in 16 bits when a model is quantized at load: heads, and what chooses experts.
    is_sensitive: bool = False
    # Whether the matrices of all experts lie one below the other in their tensor.
    is_flat: bool = False

    def tensor(self, end: str) -> str:
        """The name of one of its tensors: `weight`, or what is beside it, such as `weight_scale`."""
        return f"{self.name}.{end}" if self.expert is None else f"{self.name}{end.removeprefix('weight')}"

    def stacked(self, *shape: int) -> tuple[int, ...]:
        """The shape of a tensor that has `shape` for each matrix."""
        if self.expert is None:
            return shape
        return (self.num_experts * shape[0], *shape[1:]) if self.is_flat else (self.num_experts, *shape)

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part of a tensor of that shape that belongs to this matrix."""
        if self.expert is None:
            return tensor
        return tensor.chunk(self.num_experts)[self.expert] if self.is_flat else tensor[self.expert]


# Changes rows before they are stored.
Arrange = Callable[[torch.Tensor], torch.Tensor]


class MatrixPart(NamedTuple):
    """Some outputs and inputs of a matrix that a checkpoint may hold quantized."""

    source: Source
    rows: slice
    columns: slice
    # Applied to the rows, if their order changes.
    arrange: Arrange | None = None


class Scheme(Protocol):
    """How one matrix is stored."""

    def wanted(self, source: Source, stored: Stored) -> Sequence[Wanted]:
        """Its tensors, which are checked before anything is read."""
        ...

    def read(self, source: Source, stored: Stored, rows: slice, columns: slice) -> Quantized:
        """A part of it; views of mapped pages where no number has to change."""
        ...


class Format(Protocol):
    """The settings of a checkpoint for all its matrices."""

    # For people: "compressed-tensors pack-quantized".
    name: str

    def scheme(self, source: Source, stored: Stored) -> Scheme:
        """How a matrix that is not stored in 16 bits is; raises StartError where the settings say that it should be."""
        ...

    def check(self, modules: Sequence[str]) -> None:
        """Raise StartError if lists of modules in the settings have none of this model."""
        ...
