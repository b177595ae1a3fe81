"""Records what a computation on a CPU does, and repeats it without Python: a decode step has hundreds of ops.

Ops in C that follow each other become one call. Ops of PyTorch between them are repeated one by one, and write into the
memory of the first time. So a computation must have the same shapes every time and may not read its numbers: one that
does is refused, in whatever way it reads them.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from penstock_kernels.base.devices import runs_kernels
from penstock_kernels.native.library import Failure, address, library, recorded
from penstock_kernels.native.lowering import lower

_ALIGNMENT = 64
# More than most steps need. Sizes come in any order, and the rest of a chunk that is too small for the next is lost.
_CHUNK_BYTES = 1 << 26
# Ops whose result may have another shape or other numbers in the next run.
_CHANGING = {
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.nondeterministic_seeded,
}
_READS = {torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__}


class NotRecordable(Exception):
    """The computation depends on its numbers, or on more than its memory."""


class Arena:
    """Memory for intermediate results. Recordings share it: one runs at a time, and then its results are read."""

    def __init__(self) -> None:
        self._chunks: list[torch.Tensor] = []
        # The most bytes that a recording uses of each chunk: the system gives no memory for the rest.
        self._most_used: list[int] = []
        self._chunk = 0
        self._used = 0

    @property
    def num_unused(self) -> int:
        """Bytes that no recording uses."""
        return sum(map(len, self._chunks)) - sum(self._most_used)

    def rewind(self) -> None:
        """The next recording uses the same memory from its beginning."""
        self._chunk = self._used = 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Like `torch.empty`."""
        num_bytes = prod(shape) * dtype.itemsize
        while not self._fits(num_bytes):
            self._chunk, self._used = self._chunk + 1, 0
        begin = self._used
        self._used += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        chunk_len = len(self._chunks[self._chunk])
        self._most_used[self._chunk] = max(self._most_used[self._chunk], min(self._used, chunk_len))
        return self._chunks[self._chunk][begin : begin + num_bytes].view(dtype).view(shape)

    def _fits(self, num_bytes: int) -> bool:
        if self._chunk == len(self._chunks):
            self._chunks.append(torch.empty(max(num_bytes, _CHUNK_BYTES), dtype=torch.uint8))
            self._most_used.append(0)
        return self._used + num_bytes <= len(self._chunks[self._chunk])


class _Entry(ctypes.Structure):
    """`Call` of src/replay.h, field by field."""

    _fields_ = (("op", ctypes.c_void_p), ("arguments", ctypes.c_void_p))


@dataclass(frozen=True, slots=True)
class _Call:
    """An op in C. What its arguments point to lives as long as this."""

    op: int
    arguments: ctypes.Structure
    kept: tuple[object, ...]
    failure: Failure


class Calls:
    """Ops in C that follow each other."""

    def __init__(self, calls: list[_Call]) -> None:
        self._calls = calls
        entries = (_Entry(call.op, ctypes.addressof(call.arguments)) for call in calls)
        # The array that `penstock_replay` takes.
        self.entries = (_Entry * len(calls))(*entries)

    def __len__(self) -> int:
        return len(self._calls)

    def __call__(self) -> None:
        compiled = library()
        assert compiled is not None, "it was recorded with it"
        done = compiled.penstock_replay(self.entries, ctypes.c_int64(len(self)))
        if done < len(self):
            raise self.failure(done)

    def failure(self, number: int) -> Exception:
        """Why this one failed."""
        return self._calls[number].failure()


@dataclass(frozen=True, slots=True)
class _TorchCall:
    """An op of PyTorch, and the memory of its results; none for one that works in place."""

    op: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[torch.Tensor, ...]

    def __call__(self) -> None:
        again = self.op(*self.args, **self.kwargs)
        for result, new in zip(self.results, _tensors(again), strict=False):
            result.copy_(new)


class _Reads(TorchFunctionMode):
    """Refuses what reads numbers without an op of PyTorch."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _READS:
            raise NotRecordable(f"{func.__name__}: numbers are read")
        return func(*args, **(kwargs or {}))


class _Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every op."""

    def __init__(self, arena: Arena) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._arena = arena
        self.steps: list[_Call | _TorchCall] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here. PyTorch would import its compiler to say so, which takes a start some seconds."""
        return False

    def add(self, op: int, call: ctypes.Structure, kept: tuple[object, ...], failure: Failure) -> None:
        self.steps.append(_Call(op, call, kept, failure))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace != "aten" or _CHANGING.intersection(func.tags):
            raise NotRecordable(f"{func}: not the same every time")
        if func is torch.ops.aten.empty.memory_format:
            return self._arena.empty(args[0], kwargs.get("dtype") or torch.get_default_dtype())
        found = func(*args, **kwargs)
        if not isinstance(found, (torch.Tensor, tuple, list)):
            raise NotRecordable(f"{func}: numbers are read")
        if func._schema.is_mutable:
            self._record(func, args, kwargs, found, ())
        elif not _shares_memory(found, (*args, *kwargs.values())):
            found = self._moved(found)
            self._record(func, args, kwargs, found, tuple(_tensors(found)))
        return found

    def _record(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        found: Any,
        results: tuple[torch.Tensor, ...],
    ) -> None:
        lowered = lower(func, args, kwargs, found)
        if lowered is None:
            self.steps.append(_TorchCall(func, args, kwargs, results))
        else:
            self.steps += [_Call(address(move.name), move.call, move.kept, RuntimeError) for move in lowered]

    def _moved(self, found: Any) -> Any:
        """New results, in the memory that recordings share."""
        if isinstance(found, (tuple, list)):
            return type(found)(self._moved(part) for part in found)
        if not isinstance(found, torch.Tensor) or not found.is_contiguous():
            return found
        return self._arena.empty(found.shape, found.dtype).copy_(found)


def refuse_recording(reason: str) -> None:
    """Raise NotRecordable if a computation is being recorded: what comes next would take too much of its memory."""
    if recorded.tape is not None:
        raise NotRecordable(reason)


class Recording:
    """A computation, to be repeated on the numbers that its memory holds then."""

    def __init__(self, steps: list[_Call | _TorchCall]) -> None:
        self._parts = list(_joined(steps))

    def only_calls(self) -> Calls | None:
        """The whole computation, where it has no op but those in C."""
        [first, *others] = self._parts
        return first if isinstance(first, Calls) and not others else None

    def replay(self) -> None:
        """Compute again. Results are in the same memory as before."""
        for part in self._parts:
            part()


def record(compute: Callable[[], object], arena: Arena) -> Recording:
    """Compute, and record how. Raises NotRecordable; then the results must not be used."""
    if runs_kernels(torch.device("cpu")):
        raise NotRecordable("the interpreter of kernels computes without ops of PyTorch")
    arena.rewind()
    tape = _Tape(arena)
    recorded.count += 1
    recorded.tape = tape
    try:
        with _Reads(), tape:
            compute()
    finally:
        recorded.tape = None
    return Recording(tape.steps)


def num_recorded() -> int:
    """How many computations this thread has recorded so far. The first time takes far longer than later ones."""
    return recorded.count


def _joined(steps: list[_Call | _TorchCall]) -> Iterator[Calls | _TorchCall]:
    calls: list[_Call] = []
    for step in steps:
        if isinstance(step, _Call):
            calls.append(step)
            continue
        if calls:
            yield Calls(calls)
        calls = []
        yield step
    if calls:
        yield Calls(calls)


def _tensors(found: Any) -> Iterator[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        yield found
    elif isinstance(found, (tuple, list)):
        for part in found:
            yield from _tensors(part)


def _shares_memory(found: Any, given: Sequence[Any]) -> bool:
    """Whether results are views of what was given."""
    owners = {tensor.untyped_storage().data_ptr() for tensor in _tensors(given)}
    return any(tensor.untyped_storage().data_ptr() in owners for tensor in _tensors(found))
