"""Ties the checker to Triton's interpreter: the only place that knows how that works, for 3.6 and 3.7.

Private names, which the tests of the checker pin: if one moves, a fault is not found, and they fail.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import triton.language as tl
from kernels.memory_checker.arguments import Argument
from kernels.memory_checker.checker import MemoryChecker
from kernels.memory_checker.faults import MemoryFault
from kernels.memory_checker.footprints import Access
from triton.runtime import interpreter
from triton.runtime.errors import InterpreterError

# The atomic ops whose results do not depend on their order. Sums of floats do.
_UPDATES = ("ADD", "AND", "OR", "XOR", "MIN", "MAX", "UMIN", "UMAX")


class _ArgumentPointer(tl.pointer_type):
    """The type of pointers into an argument. The interpreter hands it on in all arithmetic of pointers."""

    def __init__(self, plain: Any, argument: Argument) -> None:
        super().__init__(plain.element_ty, plain.address_space, plain.const)
        self.argument = argument


def install(checker: MemoryChecker) -> None:
    """Have `checker` check every kernel that the interpreter runs from here on."""
    _hook_launches(checker)
    _hook_programs(checker)
    _hook_memory(checker)


def _hook_launches(checker: MemoryChecker) -> None:
    executor: Any = interpreter.GridExecutor
    plain_call, plain_init, plain_convert = (
        executor.__call__,
        executor._init_args_hst,
        interpreter._implicit_cvt,
    )

    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            plain_call(self, *args, **kwargs)
        except InterpreterError as error:
            raise _fault_in(error) from None

    def init_arguments(self: Any, args: Any, kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        on_host, named = plain_init(self, args, kwargs)
        checker.begin(self.fn.__name__, {**dict(zip(self.arg_names, on_host, strict=False)), **named})
        return on_host, named

    def convert(value: Any) -> Any:
        converted = plain_convert(value)
        argument = checker.launch.arguments.get(id(value))
        if argument is not None:
            converted.handle.dtype = _ArgumentPointer(converted.handle.dtype, argument)
        return converted

    executor.__call__, executor._init_args_hst, interpreter._implicit_cvt = call, init_arguments, convert


def _fault_in(error: BaseException) -> BaseException:
    """The interpreter packs an exception once for each function of the kernel that it leaves."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, MemoryFault):
        cause = cause.__cause__
    return cause or error


def _hook_programs(checker: MemoryChecker) -> None:
    builder: Any = interpreter.InterpreterBuilder
    plain_set_grid_dim, plain_set_grid_idx = builder.set_grid_dim, builder.set_grid_idx

    def set_grid_dim(self: Any, *grid: int) -> None:
        plain_set_grid_dim(self, *grid)
        checker.launch.begin((grid[0], grid[1], grid[2]))

    def set_grid_idx(self: Any, *_: int) -> None:
        plain_set_grid_idx(self, *checker.launch.next_program())

    builder.set_grid_dim, builder.set_grid_idx = set_grid_dim, set_grid_idx


def _hook_memory(checker: MemoryChecker) -> None:
    builder: Any = interpreter.InterpreterBuilder
    plain_load, plain_store = builder.create_masked_load, builder.create_masked_store
    plain_rmw, plain_cas = builder.create_atomic_rmw, builder.create_atomic_cas

    def check(pointers: Any, mask: Any, access: Access) -> None:
        argument, size = getattr(pointers.dtype, "argument", None), _element_bytes(pointers)
        checker.launch.check(argument, _active(pointers.data, mask), size, access)

    def load(self: Any, pointers: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        check(pointers, mask, Access.LOAD)
        return plain_load(self, pointers, mask, *rest, **named)

    def store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        check(pointers, mask, Access.STORE)
        if pointers.data.size > 1:
            addresses = _active(pointers.data, mask)
            values = np.ascontiguousarray(np.broadcast_to(value.data, pointers.data.shape))
            bits = _active(values.view(f"u{values.itemsize}"), mask)
            checker.launch.check_lanes(getattr(pointers.dtype, "argument", None), addresses, bits)
        return plain_store(self, pointers, value, mask, *rest)

    def rmw(self: Any, op: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        check(pointers, mask, Access.UPDATE if op.name in _UPDATES else Access.STORE)
        return plain_rmw(self, op, pointers, value, mask, *rest)

    def cas(self: Any, pointers: Any, *rest: Any) -> Any:
        check(pointers, None, Access.STORE)
        return plain_cas(self, pointers, *rest)

    builder.create_masked_load, builder.create_masked_store = load, store
    builder.create_atomic_rmw, builder.create_atomic_cas = rmw, cas


def _element_bytes(pointers: Any) -> int:
    bits: int = pointers.get_element_ty().primitive_bitwidth
    return max(1, bits // 8)


def _active(values: npt.NDArray[Any], mask: Any) -> npt.NDArray[Any]:
    """The values of the lanes that are not masked off; flat. The mask of a descriptor is an array, not a handle; one
    made from a scalar has integers."""
    if mask is None:
        return values.ravel()
    is_active = np.asarray(mask.data, dtype=bool)
    return values.ravel() if is_active.all() else values[is_active]
