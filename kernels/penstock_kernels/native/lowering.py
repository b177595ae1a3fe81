"""Simple ops of PyTorch as ops in C, for recordings.

A step reads all weights of a model, so nothing else stays in the processor's caches. A call through the dispatch of
PyTorch then takes up to a tenth of a millisecond, even for a few numbers.
"""

import ctypes
from typing import Any, NamedTuple

import torch

from penstock_kernels.native.library import DTYPES, WORTH_THREADS

_ATEN = torch.ops.aten


class _Move(ctypes.Structure):
    """`Move` of src/moves.c, field by field."""

    _fields_ = (
        ("source", ctypes.c_void_p),
        ("to", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("from_dtype", "to_dtype")),
    )


class Lowered(NamedTuple):
    """What to call instead; `kept` is all that its arguments point to."""

    name: str
    call: ctypes.Structure
    kept: tuple[torch.Tensor, ...]


def lower(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Lowered | None:
    """The same op in C, if it is one of a few, on few contiguous numbers. `result`: what the op returned."""
    if func is _ATEN.zeros_like.default:
        return _move("penstock_move", None, result)
    if func in {_ATEN.to.dtype, _ATEN._to_copy.default}:
        return _move("penstock_move", args[0], result)
    if func is _ATEN.copy_.default:
        return _move("penstock_move", args[1], args[0])
    if func is _ATEN.add_.Tensor and not kwargs and isinstance(args[1], torch.Tensor):
        return _move("penstock_accumulate", args[1], args[0]) if args[1].dtype == args[0].dtype else None
    return None


def _move(name: str, source: torch.Tensor | None, to: torch.Tensor) -> Lowered | None:
    if not _is_plain(to) or to.numel() >= WORTH_THREADS:
        return None
    if source is None:
        return Lowered(name, _Move(None, to.data_ptr(), to.numel(), 0, DTYPES[to.dtype]), (to,))
    if not _is_plain(source) or source.shape != to.shape:
        return None
    dtypes = DTYPES[source.dtype], DTYPES[to.dtype]
    return Lowered(name, _Move(source.data_ptr(), to.data_ptr(), to.numel(), *dtypes), (source, to))


def _is_plain(x: torch.Tensor) -> bool:
    return x.dtype in DTYPES and x.device.type == "cpu" and x.is_contiguous()
