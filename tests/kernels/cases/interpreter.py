"""Repairs the interpreter of Triton 3.7 to 3.9 for tests: bf16 is stored as its bits there, rounded by truncation when
written and multiplied as integers by dot. The kernels compute in float32 between loads, stores and dots, so these two
are all but one: NumPy's product sums the rows of a tile in different orders on some processors, which a GPU does not.
And makes it faster, by half: it searches Triton's modules again whenever one function of a kernel calls another,
computes a check of overflows that it then drops, and makes the type and the shape of each tensor anew."""

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import torch


def repair() -> None:
    """Patch the interpreter's builder. Private names: the tests pin them by failing loudly when they move."""
    import triton.language as tl
    from triton.runtime import interpreter

    builder: Any = interpreter.InterpreterBuilder
    plain_cast, plain_dot, plain_fp_to_fp = builder.cast_impl, builder.create_dot, builder.create_fp_to_fp
    narrow = {
        tl.bfloat16: (torch.bfloat16, torch.uint16, np.uint16),
        tl.float8e4nv: (torch.float8_e4m3fn, torch.uint8, np.uint8),
    }

    def cast(self: Any, src: Any, dst_type: Any) -> Any:
        source, target = src.dtype.scalar, dst_type.scalar
        if source in narrow and target in narrow:
            return cast(self, cast(self, src, tl.float32), dst_type)
        if source in narrow:
            torch_type, _, np_type = narrow[source]
            bits = torch.from_numpy(np.ascontiguousarray(src.data).view(np_type)).view(torch_type)
            return plain_cast(self, interpreter.TensorHandle(bits.float().numpy(), tl.float32), dst_type)
        if target in narrow:
            torch_type, torch_bits, _ = narrow[target]
            wide = torch.from_numpy(np.ascontiguousarray(src.data.astype(np.float32)))
            if target == tl.float8e4nv:
                wide = wide.clamp(-448, 448)  # the hardware's conversion saturates
            return interpreter.TensorHandle(wide.to(torch_type).view(torch_bits).numpy(), target)
        return plain_cast(self, src, dst_type)

    def fp_to_fp(self: Any, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        if src.dtype.scalar in narrow or dst_type.scalar in narrow:
            return cast(self, src, dst_type)
        return plain_fp_to_fp(self, src, dst_type, rounding_mode)

    def dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
        a, b = (cast(self, x, tl.float32) if x.dtype.scalar in narrow else x for x in (a, b))
        if d.data.dtype != np.float32 or d.data.ndim != 2:
            return plain_dot(self, a, b, d, input_precision, max_num_imprecise_acc)
        # One loop for all sums: the place of a row in the tile does not change its bits.
        rows, columns = (np.ascontiguousarray(x.data, dtype=np.float32) for x in (a, b))
        products = np.einsum("mk,kn->mn", rows, columns)
        return interpreter.TensorHandle(products + d.data, d.dtype.scalar)

    builder.cast_impl, builder.create_dot, builder.create_fp_to_fp = cast, dot, fp_to_fp
    _make_masks_bool()


def _make_masks_bool() -> None:
    """A comparison of numbers that is spread over a block has their type; from 3.9 on no mask may have it."""
    import triton.language as tl
    from triton.runtime import interpreter

    builder: Any = interpreter.InterpreterBuilder
    plain_load, plain_store = builder.create_masked_load, builder.create_masked_store

    def as_bool(mask: Any) -> Any:
        if mask.data.dtype == np.bool_:
            return mask
        return interpreter.TensorHandle(mask.data.astype(np.bool_), tl.int1)

    def load(self: Any, pointers: Any, mask: Any, *more: Any, **named: Any) -> Any:
        return plain_load(self, pointers, as_bool(mask), *more, **named)

    def store(self: Any, pointers: Any, value: Any, mask: Any, *more: Any) -> Any:
        return plain_store(self, pointers, value, as_bool(mask), *more)

    builder.create_masked_load, builder.create_masked_store = load, store


def speed_up() -> None:
    """Have the interpreter do once what it does in every call within a kernel."""
    _find_modules_once()
    _drop_unread_checks()
    _make_types_once()


def _find_modules_once() -> None:
    """Each launch replaces the functions of a module of Triton once."""
    import triton.language as tl
    from triton.runtime import interpreter

    executor: Any = interpreter.GridExecutor
    plain_patch, plain_call = interpreter._patch_lang, executor.__call__
    patched: set[str] = set()

    @cache
    def modules_of(function: Any) -> frozenset[str]:
        modules = [value for value in function.__globals__.values() if value is tl or value is tl.core]
        return frozenset(module.__name__ for module in modules)

    def patch(function: Any) -> Any:
        modules = modules_of(function)
        if modules <= patched:
            return interpreter._LangPatchScope()
        patched.update(modules)
        return plain_patch(function)

    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        patched.clear()
        plain_call(self, *args, **kwargs)

    interpreter._patch_lang, executor.__call__ = patch, call


def _drop_unread_checks() -> None:
    """Without `debug` an assertion of the device does nothing, and that of no overflow is computed all the same."""
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def _make_types_once() -> None:
    """Types and shapes are never changed, so equal ones share what they are made of."""
    from triton.language import core
    from triton.runtime import interpreter

    plain_block, plain_tensor = core.block_type.__init__, core.tensor.__init__
    plain_np_dtype = interpreter._get_np_dtype
    blocks: dict[Any, dict[str, Any]] = {}
    np_dtypes: dict[str, np.dtype[Any]] = {}

    def make_block(self: Any, element_ty: Any, shape: Any) -> None:
        key = (element_ty.name, *(getattr(size, "value", size) for size in shape))
        if key in blocks:
            self.__dict__.update(blocks[key], element_ty=element_ty)
            return
        plain_block(self, element_ty, shape)
        shape_of_tensor = core.tuple([core.constexpr(size) for size in self.shape])
        self.of_tensor = {"shape": shape_of_tensor, "numel": core.constexpr(self.numel)}
        blocks[key] = self.__dict__

    def make_tensor(self: Any, handle: Any, type: Any) -> None:
        if type.is_block():
            self.__dict__.update(type.of_tensor, handle=handle, type=type, dtype=type.element_ty)
        else:
            plain_tensor(self, handle, type)

    def np_dtype_of(tt_dtype: Any) -> np.dtype[Any]:
        name = tt_dtype.name
        if name not in np_dtypes:
            np_dtypes[name] = plain_np_dtype(tt_dtype)
        return np_dtypes[name]

    core.block_type.__init__, core.tensor.__init__ = make_block, make_tensor
    interpreter._get_np_dtype = np_dtype_of
