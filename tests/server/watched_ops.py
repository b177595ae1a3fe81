"""Watches every op of a step over tensors that pretend to be on a GPU, and refuses what a step must not do.

The tensors are torch's fake ones: they have shapes, types, a device and storages, and no numbers. So whatever needs a
number on the host is found, whatever the values, and a whole shard is built and stepped in seconds without a GPU.

Refused while a step is launched: waiting for the device (`item`, `tolist`, `bool`, masks as indices, shapes that depend
on values) and copies between host and device that wait, because they are blocking or their memory on the host is not
pinned. Refused while a graph is captured, beside that: every such copy, and every event. A graph must find its inputs
where they were: a replay is refused once memory of another tensor that its ops used is given back. What captured ops
made must not be used by ops outside, because other graphs use the same pool. A result on the host must not be read
before somebody has waited for an event behind its copy.
"""

import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NoReturn

import torch
from fake_memory import FakeMemory
from torch._subclasses import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

_OURS = {"penstock_server", "penstock_kernels"}
_NEEDS_NUMBERS = (
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "equal",
    "is_nonzero",
    "_unique2",
    "unique_dim",
)
_INDEXED = ("index", "index_put_", "index_put", "_index_put_impl_", "_unsafe_index")
_COPIES = ("copy_", "_to_copy")


class Refused(AssertionError):
    """An action that a step must not do, and the line of the project that does it."""


class Captured:
    """The tensors that a captured graph made, and those of others that it used."""

    def __init__(self) -> None:
        self.made: set[int] = set()
        self.used: dict[int, tuple[StorageWeakRef, str]] = {}


class WatchedOps(TorchDispatchMode):
    """To be entered inside of a FakeTensorMode."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_ops = 0
        self.num_launches = 0
        self.memory = FakeMemory()
        self._is_stepping = False
        self._may_wait = False
        self._capturing: Captured | None = None
        self._graphs: list[Captured] = []
        # By address of a storage; a weak reference keeps the address from being given out again.
        self._known: dict[int, StorageWeakRef] = {}
        self._pinned: set[int] = set()
        # Storages on the host that a copy fills, with the number of the copy; and the last copy that was waited for.
        self._filling: dict[int, int] = {}
        self._num_copies = 0
        self._num_waited = 0

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """While a step is launched."""
        self._is_stepping = True
        try:
            yield
        finally:
            self._is_stepping = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Where a step may wait, because what it computes depends on numbers of the device."""
        before = self._is_stepping, self._may_wait
        self._is_stepping, self._may_wait = False, True
        try:
            yield
        finally:
            self._is_stepping, self._may_wait = before

    @contextmanager
    def capturing(self) -> Iterator[Captured]:
        """While a graph is captured."""
        self._capturing = Captured()
        try:
            yield self._capturing
        finally:
            self._graphs.append(self._capturing)
            self._capturing = None

    @property
    def is_capturing(self) -> bool:
        return self._capturing is not None

    def replay(self, graph: Captured) -> None:
        """A graph is launched."""
        for reference, line in graph.used.values():
            if _is_gone(reference):
                raise Refused(f"a graph uses memory that was given back; it was used by {line}")

    def mark(self) -> int:
        """An event is recorded. The copies before it."""
        if self._capturing is not None:
            self._refuse("an event is recorded in a graph")
        return self._num_copies

    def wait(self, mark: int) -> None:
        """The host waits for an event."""
        if self._is_stepping or self._capturing is not None:
            self._refuse("the host waits for the device")
        self._num_waited = max(self._num_waited, mark)

    def wait_for_all(self) -> None:
        """The host waits for the device."""
        self.wait(self._num_copies)

    def launch(self, tensors: list[torch.Tensor]) -> None:
        """A kernel is launched with these arguments."""
        self.num_launches += 1
        self._use(tensors, made=[])
        for tensor in tensors:
            if tensor.device.type != "cuda":
                self._refuse(f"a kernel is given a tensor on {tensor.device}")

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Without a compiler there is nothing to hide from it, and to hide takes time."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name == "device":  # only asks
            return args[0].fake_device if isinstance(args[0], FakeTensor) else func(*args, **kwargs)
        # In inference mode an op that is made of others comes as a whole; what matters are the others.
        if _is_made_of_others(func):
            with self:
                return func.decompose(*args, **kwargs)
        given = [*_tensors_in(args), *_tensors_in(kwargs.values())]
        self.num_ops += 1
        on_device = any(tensor.device.type == "cuda" for tensor in given)
        if name == "_local_scalar_dense" and (self._may_wait or not on_device):
            return self._read(given[0])
        if name == "is_pinned":
            return self._key(given[0]) in self._pinned
        if name == "_pin_memory":
            return self._pin(given[0])
        if on_device:
            self._check_numbers(name, given, kwargs)
        made = func(*args, **kwargs)
        results = list(_tensors_in((made,)))
        if name in _COPIES:
            source, target = (args[1], args[0]) if name == "copy_" else (args[0], made)
            self._check_copy(name, source, target, _is_async(name, args, kwargs))
        if kwargs.get("pin_memory"):
            self._pinned.update(map(self._key, results))
        self._use(given, results)
        self.memory.count(results, is_in_pool=self.is_capturing)
        return made

    def _check_numbers(self, name: str, given: list[torch.Tensor], kwargs: Any) -> None:
        is_masked = name in _INDEXED and any(
            tensor.dtype in (torch.bool, torch.uint8) for tensor in given[1:]
        )
        is_counted = name == "repeat_interleave" and kwargs.get("output_size") is None
        if (self._is_stepping or self._capturing is not None) and (
            name in _NEEDS_NUMBERS or is_masked or is_counted
        ):
            self._refuse(f"aten.{name} waits for the device")

    def _check_copy(self, name: str, source: torch.Tensor, target: torch.Tensor, is_async: bool) -> None:
        ends = {source.device.type, target.device.type}
        if ends != {"cpu", "cuda"}:
            return
        host = source if source.device.type == "cpu" else target
        if self._capturing is not None:
            self._refuse(f"aten.{name} copies between host and device in a graph")
        if self._is_stepping and not (is_async and self._key(host) in self._pinned):
            self._refuse(f"aten.{name} copies between host and device and waits for it")
        if host is target:
            self._num_copies += 1
            self._filling[self._key(host)] = self._num_copies if is_async else 0

    def _use(self, given: list[torch.Tensor], made: list[torch.Tensor]) -> None:
        """Ops inside and outside of graphs must not share what a graph made."""
        for tensor in given:
            key = self._key(tensor)
            for graph in self._graphs:
                if key in graph.made and not _is_gone(self._known[key]):
                    self._refuse("an op uses what a captured op made, which other graphs overwrite")
            captured = self._capturing
            is_others = captured is not None and tensor.device.type == "cuda" and key not in captured.made
            if captured is not None and is_others and key not in captured.used:
                captured.used[key] = self._known[key], _line()
        if self._capturing is not None:
            ours = {self._key(tensor) for tensor in made if tensor.device.type == "cuda"}
            self._capturing.made |= ours - self._capturing.used.keys()

    def _read(self, host: torch.Tensor) -> int | float | bool:
        """A number on the host, which is as good as any: 1."""
        if self._filling.get(self._key(host), 0) > self._num_waited:
            self._refuse("a result is read before its copy is waited for")
        return {torch.bool: True}.get(host.dtype, 1.0 if host.is_floating_point() else 1)

    def _pin(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._capturing is not None:
            self._refuse("memory is pinned in a graph")
        pinned = torch.empty_like(tensor)
        self._pinned.add(self._key(pinned))
        return pinned

    def _key(self, tensor: torch.Tensor) -> int:
        reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        key: int = reference.cdata
        self._known.setdefault(key, reference)
        return key

    def _refuse(self, what: str) -> NoReturn:
        raise Refused(f"{what}: {_line()}")


def _tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors_in(value)


@cache
def _is_made_of_others(func: Any) -> bool:
    return bool(func._can_decompose())


def _is_gone(storage: StorageWeakRef) -> bool:
    return bool(storage.expired())  # type: ignore[no-untyped-call]


def _is_async(name: str, args: Any, kwargs: Any) -> bool:
    return bool(kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]))


def _line() -> str:
    """The innermost line of the project, or of a test that planted something."""
    walked = traceback.walk_stack(sys._getframe())
    frame = next(frame for frame, _ in walked if _is_ours(frame.f_code.co_filename))
    line = traceback.extract_stack(frame, limit=1)[0]
    return f"{line.filename}:{line.lineno} in {line.name}: {line.line}"


@lru_cache
def _is_ours(filename: str) -> bool:
    file = Path(filename)
    return not _OURS.isdisjoint(file.parts) or file.name.startswith("test_")
