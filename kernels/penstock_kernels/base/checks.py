"""Argument checks shared by the ops. They raise ValueError: a wrong shape is the caller's mistake, on every device."""

from collections.abc import Callable

import torch


def require(holds: bool, message: str | Callable[[], str]) -> None:
    """Raise ValueError with `message` unless `holds`. A message that is a function is made only when it is needed."""
    if not holds:
        raise ValueError(message if isinstance(message, str) else message())


def require_same_dtype(op: str, **tensors: torch.Tensor) -> None:
    """Raise ValueError unless all tensors share one dtype; names them in the message."""
    first, *others = tensors.values()
    if any(tensor.dtype != first.dtype for tensor in others):
        found = ", ".join(f"{name} {tensor.dtype}" for name, tensor in tensors.items())
        raise ValueError(f"{op}: dtypes differ: {found}")
