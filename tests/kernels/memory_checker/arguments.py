"""The tensors that a launch was given, by the names of its arguments, and the memory that each may touch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Argument:
    """One tensor: the bytes from its first element to behind its last, which may be a part of its storage."""

    name: str
    first: int
    end: int
    itemsize: int
    storage: int  # the address where its storage begins

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> "Argument":
        """A tensor without elements has no memory."""
        first, size = tensor.data_ptr(), tensor.element_size()
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        length = sum((count - 1) * stride for count, stride in steps) + 1 if tensor.numel() else 0
        return cls(name, first, first + length * size, size, tensor.untyped_storage().data_ptr())

    @property
    def num_elements(self) -> int:
        """The number of elements in its memory; those between the rows of a slice count."""
        return (self.end - self.first) // self.itemsize

    def element_at(self, address: int) -> str:
        """An address as an element of this tensor, such as `x_ptr[17]`."""
        return f"{self.name}[{(address - self.first) // self.itemsize}]"


def tensors_in(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of one argument of a kernel: itself, the members of a tuple, the base of a tensor descriptor."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, tuple):
        for number, member in enumerate(value):
            yield from tensors_in(f"{name}.{number}", member)
    elif hasattr(value, "base"):
        yield from tensors_in(name, value.base)
