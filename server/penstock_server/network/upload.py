"""Numbers from the host to the device, without waiting for what runs there."""

from array import array
from collections.abc import Iterable, Sequence

import torch


def copy_to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a tensor of the host, which may change as soon as this returns: a GPU copies from pinned memory."""
    return tensor if device.type != "cuda" else tensor.pin_memory().to(device, non_blocking=True)


def to_device(
    values: Sequence[float] | Sequence[Sequence[float]], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """A tensor of these values; for a GPU through pinned memory, which torch reuses only after the copy."""
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


class Upload:
    """Lists of integers that travel together: one copy, however many they are."""

    def __init__(self) -> None:
        self._numbers = array("q")
        self._sizes: list[int] = []

    def add(self, numbers: Iterable[int]) -> None:
        """Append a list."""
        before = len(self._numbers)
        self._numbers.extend(numbers)
        self._sizes.append(len(self._numbers) - before)

    def send(self, device: torch.device) -> Sequence[torch.Tensor]:
        """The lists in order, int64; one must have numbers. Making tensors of lists takes several times as long."""
        sent = copy_to_device(torch.frombuffer(self._numbers, dtype=torch.int64), device)
        return sent.split_with_sizes(self._sizes)
