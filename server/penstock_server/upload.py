"""Numbers from the host to the device, without waiting for what runs there."""

from collections.abc import Sequence

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
