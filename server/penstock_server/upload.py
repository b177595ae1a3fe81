"""Numbers from the host to the device, without waiting for what runs there."""

from collections.abc import Sequence

import torch


def to_device(
    values: Sequence[float] | Sequence[Sequence[float]], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """On a GPU through pinned memory, which torch takes again only when the copy has been made."""
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)
