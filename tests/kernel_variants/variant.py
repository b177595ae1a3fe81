"""A variant: one kernel as Triton would compile it for the arguments of a launch. It can be written to a file.

What depends on the arguments is asked of Triton itself: the type of each, whether it is divisible by 16 or equal to 1,
the constants, and the options of the launch.
"""

import importlib
import json
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

_WARP = 32
_OPTIONS = ("num_warps", "num_stages", "launch_pdl")
_UNSPECIALISED = ("do_not_specialize", "do_not_specialize_on_alignment")


class Variant(NamedTuple):
    """The arguments of `triton.compile`, in types that JSON and sets accept."""

    module: str
    kernel: str
    # Name and type of every parameter, "constexpr" for constants.
    signature: tuple[tuple[str, str], ...]
    # Numbers of parameters, and the values that are compiled in.
    constants: tuple[tuple[int, Any], ...]
    # Numbers of the parameters that are divisible by 16.
    divisible: tuple[int, ...]
    options: tuple[tuple[str, int], ...]

    @property
    def label(self) -> str:
        """For messages: the kernel, and what sets this variant apart from its others."""
        constants = {self.signature[number][0]: value for number, value in self.constants}
        types = {name: kind for name, kind in self.signature if kind != "constexpr"}
        divisible = [self.signature[number][0] for number in self.divisible]
        return f"{self.kernel} {constants} {types} divisible: {divisible} {dict(self.options)}"

    def is_current(self) -> bool:
        """Whether the kernel is there, and has these parameters, since a variant may have been recorded long ago."""
        try:
            kernel = getattr(importlib.import_module(self.module), self.kernel, None)
        except ImportError:
            return False
        return kernel is not None and kernel.arg_names == [name for name, _ in self.signature]

    def facts(self) -> frozenset[tuple[Any, ...]]:
        """The properties that can each make a compiler fail: types, alignments, constants and options, one by one."""
        return self._properties(lambda _number, value: (value,))

    def traits(self) -> frozenset[tuple[Any, ...]]:
        """The facts, but of sizes of a model only what the compiler looks at: powers of two, and multiples of 16. Tiny
        models have sizes that no other model has."""
        return self._properties(self._trait)

    def _trait(self, number: int, value: Any) -> tuple[Any, ...]:
        if type(value) is not int or self.signature[number][0].startswith("BLOCK"):
            return (value,)
        return value & value - 1 == 0, value % 16 == 0

    def _properties(self, of_constant: Callable[[int, Any], tuple[Any, ...]]) -> frozenset[tuple[Any, ...]]:
        kinds = [
            ("type", name, kind, number in self.divisible)
            for number, (name, kind) in enumerate(self.signature)
        ]
        values = [
            ("constant", number, type(value).__name__, *of_constant(number, value))
            for number, value in self.constants
        ]
        return frozenset([*kinds, *values, *self.options])


def to_line(variant: Variant) -> str:
    return json.dumps(variant)


def from_line(line: str) -> Variant:
    module, kernel, signature, constants, divisible, options = json.loads(line)
    return Variant(
        module,
        kernel,
        tuple((name, kind) for name, kind in signature),
        tuple((number, value) for number, value in constants),
        tuple(divisible),
        tuple((name, value) for name, value in options),
    )


def target(capability: int) -> GPUTarget:
    return GPUTarget("cuda", capability, _WARP)


def variant_of(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Variant:
    """The variant for a launch. `kernel`: what `triton.jit` made, compiled or interpreted."""
    given = getattr(kernel, "kwargs", None) or vars(kernel)
    function, binder = _binder(kernel.fn, *(tuple(given[name] or ()) for name in _UNSPECIALISED))
    bound, found, _ = binder(*args, **kwargs)
    signature, constants, divisible = [], [], []
    for number, (name, (kind, speciality)) in enumerate(zip(bound, found, strict=True)):
        signature.append((name, kind))
        if kind == "constexpr":
            constants.append((number, bound[name]))
        elif speciality == "D":
            divisible.append(number)
        else:
            assert speciality in (None, ""), f"{name}: Triton specialises on {speciality!r}"
    options = tuple((name, kwargs[name]) for name in _OPTIONS if name in kwargs)
    parts = (tuple(signature), tuple(constants), tuple(divisible), options)
    return Variant(function.module, function.fn.__name__, *parts)


@cache
def _binder(function: Any, *unspecialised: tuple[str, ...]) -> tuple[JITFunction[Any], Any]:
    """The objects from which Triton derives variants; the parameters are those that the decorator names."""
    kernel = JITFunction(function, **dict(zip(_UNSPECIALISED, map(list, unspecialised), strict=True)))
    return kernel, create_function_from_signature(kernel.signature, kernel.params, make_backend(target(90)))
