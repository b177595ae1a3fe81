"""Torch's fake tensors, with a shorter way for what was computed before.

An op of fake tensors gives the same shapes, types and storages whenever it is given the same. Torch remembers that,
too, but its look-up takes as long as many an op, and it remembers no views of weights. A step is thousands of ops, and
most are those of the step before.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, NamedTuple

import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch._subclasses.fake_tensor import in_kernel_invocation_manager

# The tags of ops whose result depends on numbers, or which change the form of a tensor in place.
_NEVER = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}
_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


class _Unknown(Exception):
    """The arguments have more than is remembered."""


class _Made(NamedTuple):
    """One result: an argument itself, a view of the only one, or memory of its own.

    Of an op that changes an argument torch returns that one, whatever a mode says, so it may be given twice.
    """

    argument: int | None
    is_view: bool
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    is_inference: bool


class _Result(NamedTuple):
    """All results, and the type that holds them if there are several."""

    made: list[_Made]
    holder: Callable[[list[Any]], Any] | None


class QuickFakeMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """To be used as the plain one. What one remembers serves all of the process."""

    _results: ClassVar[dict[tuple[Any, ...], _Result | None]] = {}

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.cache_enabled = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Without a compiler there is nothing to hide from it, and to hide takes time."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors: list[FakeTensor] = []
        key: list[Any] = [func, torch.is_inference_mode_enabled(), torch.get_default_dtype()]
        try:
            self._describe(args, key, tensors)
            self._describe(kwargs.items(), key, tensors)
        except _Unknown:
            return super().__torch_dispatch__(func, types, args, kwargs)
        known = tuple(key)
        result = self._results.get(known)
        if result is not None:
            return self._again(result, tensors)
        made = super().__torch_dispatch__(func, types, args, kwargs)
        if known not in self._results:
            self._results[known] = self._remembered(func, made, tensors)
        return made

    def _describe(self, values: Any, key: list[Any], tensors: list[FakeTensor]) -> None:
        """Adds everything that the result depends on to `key` and `tensors`."""
        for value in values:
            kind = value.__class__
            if kind is FakeTensor:
                if value.constant is not None or value.fake_mode is not self:
                    raise _Unknown
                tensors.append(value)
                key += (value.shape, value.stride(), value.storage_offset(), value.dtype, value._fake_device)
                key.append(value.is_inference())
            elif kind in _PLAIN:
                key += (kind, value)
            elif kind is list or kind is tuple:
                key += (kind, len(value))
                self._describe(value, key, tensors)
            else:
                raise _Unknown

    def _remembered(self, func: Any, made: Any, tensors: list[FakeTensor]) -> _Result | None:
        """None: to be computed each time."""
        results = list(made) if isinstance(made, (list, tuple)) else [made]
        if _needs_numbers(func) or any(type(one) is not FakeTensor for one in results):
            return None
        storages = [_storage(tensor) for tensor in tensors]
        described = []
        for one in results:
            argument = next((number for number, tensor in enumerate(tensors) if tensor is one), None)
            is_view = argument is None and _storage(one) in storages
            if one.constant is not None or (is_view and len(tensors) != 1):
                return None
            facts = (tuple(one.shape), one.stride(), one.storage_offset(), one.dtype, one.device)
            described.append(_Made(argument, is_view, *facts, one.is_inference()))
        result = _Result(described, type(made) if isinstance(made, (list, tuple)) else None)
        again = self._again(result, tensors)
        return result if _are_alike(results, again if result.holder else [again]) else None

    def _again(self, result: _Result, tensors: list[FakeTensor]) -> Any:
        made = [self._tensor(one, tensors) for one in result.made]
        return made[0] if result.holder is None else result.holder(made)

    def _tensor(self, made: _Made, tensors: list[FakeTensor]) -> FakeTensor:
        if made.argument is not None:
            return tensors[made.argument]
        with _inference(made.is_inference), in_kernel_invocation_manager(self):
            if made.is_view:
                empty = torch.empty_strided((), (), dtype=made.dtype, device="meta")
                empty.set_(tensors[0].untyped_storage(), made.offset, made.shape, made.stride)
            else:
                empty = torch.empty_strided(made.shape, made.stride, dtype=made.dtype, device="meta")
        with _inference(made.is_inference):
            return FakeTensor(self, empty, made.device)


def _inference(is_inference: bool) -> AbstractContextManager[Any]:
    """A view of what was made outside of inference mode is no tensor of it."""
    if torch.is_inference_mode_enabled() == is_inference:
        return nullcontext()
    return torch._C._InferenceMode(is_inference)


def _needs_numbers(func: Any) -> bool:
    # Among indices, only masks need numbers, and those fail each time.
    return func is not torch.ops.aten.index.Tensor and not _NEVER.isdisjoint(func.tags)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _are_alike(ones: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """In all that torch compares before it remembers a result, and in the size of their memory."""

    def facts(tensor: torch.Tensor) -> Any:
        keys = torch._C._dispatch_key_set(tensor)
        return (tensor.untyped_storage().nbytes(), keys, tensor.requires_grad)

    return all(map(lambda one, other: facts(one) == facts(other), ones, others))
