"""Argument checks shared by the ops. They raise ValueError: a wrong shape is the caller's mistake, on every device."""

import torch


def require(holds: bool, message: str) -> None:
    """Raise ValueError with `message` unless `holds`."""
    if not holds:
        raise ValueError(message)


def require_same_dtype(op: str, **tensors: torch.Tensor) -> None:
    """Raise ValueError unless all tensors share one dtype; names them in the message."""
    if len({tensor.dtype for tensor in tensors.values()}) > 1:
        found = ", ".join(f"{name} {tensor.dtype}" for name, tensor in tensors.items())
        raise ValueError(f"{op}: dtypes differ: {found}")
