"""Copies what the host computed to the device, without waiting for the copy."""

import torch


def upload(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The numbers on the device. Work that is launched later finds them there."""
    if device.type != "cuda":
        return numbers
    return numbers.pin_memory().to(device, non_blocking=True)
