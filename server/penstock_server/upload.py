"""Numbers from the host to the device, without waiting for what runs there."""

from collections.abc import Iterable, Sequence

import torch


def copy_to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor of the host, which may change as soon as this returns: a GPU copies what was pinned."""
    return tensor if device.type != "cuda" else tensor.pin_memory().to(device, non_blocking=True)


def to_device(
    values: Sequence[float] | Sequence[Sequence[float]], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """On a GPU through pinned memory, which torch takes again only when the copy has been made."""
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


class Upload:
    """Lists of integers that travel together: one copy, however many they are."""

    def __init__(self) -> None:
        self._numbers: list[int] = []

    def add(self, numbers: Iterable[int]) -> slice:
        """Where the list will stand in what `send` returns."""
        first = len(self._numbers)
        self._numbers.extend(numbers)
        return slice(first, len(self._numbers))

    def send(self, device: torch.device) -> torch.Tensor:
        """All of them, int64."""
        return to_device(self._numbers, torch.int64, device)
