"""Weights that have left a GPU for the memory of the host, and come back to the tensors that they were in."""

from collections.abc import Iterator
from typing import Any, TypeVar

import torch

Kind = TypeVar("Kind")

# Objects of these packages are looked into: layers, matrices, tables.
_OURS = ("penstock_", "transformers.", "torch.nn.")


class Parked:
    """The tensors keep their shapes, and have no memory between `leave` and `come_back`."""

    def __init__(self, device: torch.device, *roots: object) -> None:
        """All tensors on this device that are reached from these: models, or tuples of them."""
        self._device = device
        self._roots = roots
        self._away: list[tuple[torch.UntypedStorage, torch.Tensor]] = []

    def leave(self) -> None:
        """Move to the memory of the host what is not there yet."""
        for tensor in tensors_of(self._roots):
            storage = tensor.untyped_storage()
            # Several tensors may be views of one storage.
            if tensor.device != self._device or not storage.nbytes():
                continue
            host = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=self._device.type == "cuda")
            host.copy_(_bytes_of(storage))
            storage.resize_(0)
            self._away.append((storage, host))

    def come_back(self) -> None:
        """Give each its memory and numbers again. Where there is no memory, some have come and others have not."""
        while self._away:
            storage, host = self._away[-1]
            storage.resize_(host.nbytes)
            _bytes_of(storage).copy_(host)
            self._away.pop()

    @property
    def num_bytes(self) -> int:
        """The bytes in the memory of the host."""
        return sum(host.nbytes for _storage, host in self._away)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def bytes_of(root: object) -> int:
    """The memory of all tensors that are reached, those that share it counted once."""
    storages = (tensor.untyped_storage() for tensor in tensors_of(root))
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def tensors_of(root: object) -> Iterator[torch.Tensor]:
    """Every tensor that is reached by attributes and members, once or more often."""
    return reached(root, torch.Tensor)


def reached(root: object, kind: type[Kind]) -> Iterator[Kind]:
    """All of a kind that are reached so, but for those behind one of them."""
    waiting: list[object] = [root]
    seen: set[int] = set()
    while waiting:
        it = waiting.pop()
        if id(it) in seen:
            continue
        seen.add(id(it))
        if isinstance(it, kind):
            yield it
        else:
            waiting.extend(_members(it))


def _members(it: object) -> list[Any]:
    if isinstance(it, dict):
        return list(it.values())
    if isinstance(it, list | tuple | set):
        return list(it)
    if not type(it).__module__.startswith(_OURS) or isinstance(it, type):
        return []
    names = {name for kind in type(it).__mro__ for name in getattr(kind, "__slots__", ())}
    slots = [getattr(it, name) for name in names if hasattr(it, name)]
    return [*getattr(it, "__dict__", {}).values(), *slots]
