"""Simple ops of PyTorch as ops in C, for recordings.

A step reads all weights of a model, so nothing else stays in the processor's caches. A call through the dispatch of
PyTorch then takes up to a tenth of a millisecond, even for a few numbers.
"""

import ctypes
from typing import Any, NamedTuple

import torch

from penstock_kernels.native.library import DTYPES

_ATEN = torch.ops.aten
# Copies that take the place of one op, and numbers of each: more are left to PyTorch.
_MOST_MOVES, _MOST_NUMBERS = 64, 1 << 18


class _Move(ctypes.Structure):
    """`Move` of src/moves.c, field by field."""

    _fields_ = (
        ("source", ctypes.c_void_p),
        ("to", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("num_rows", "len", "from_stride", "to_stride")),
        *((name, ctypes.c_int32) for name in ("from_dtype", "to_dtype")),
    )


class Lowered(NamedTuple):
    """What to call instead; `kept` is all that its arguments point to."""

    name: str
    call: ctypes.Structure
    kept: tuple[torch.Tensor, ...]


def lower(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> list[Lowered] | None:
    """The same op in C, if it is one of a few, on few numbers in rows. `result`: what the op returned."""
    if func is _ATEN.cat.default:
        return _moves_of_rows(args[0], args[1] if len(args) > 1 else 0, result)
    lowered = _lower(func, args, kwargs, result)
    return None if lowered is None else [lowered]


def _lower(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Lowered | None:
    if func is _ATEN.zeros_like.default:
        return _move("penstock_move", None, result)
    if func is _ATEN.full.default:
        # The numbers are the same every time.
        return _move("penstock_move", result.clone(), result)
    if func in {_ATEN.to.dtype, _ATEN._to_copy.default, _ATEN.clone.default}:
        return _move("penstock_move", args[0], result)
    if func is _ATEN.copy_.default:
        return _move("penstock_move", args[1], args[0])
    if func is _ATEN.add_.Tensor and not kwargs and isinstance(args[1], torch.Tensor):
        return _move("penstock_accumulate", args[1], args[0]) if args[1].dtype == args[0].dtype else None
    return None


def _moves_of_rows(parts: list[torch.Tensor], dim: int, result: torch.Tensor) -> list[Lowered] | None:
    """Rows side by side: a copy of each row of each part."""
    is_one = result.dim() == 2 and dim in (1, -1) and all(part.dtype == result.dtype for part in parts)
    if not is_one or len(parts) * len(result) > _MOST_MOVES or not all(map(_is_plain, (*parts, result))):
        return None
    found, begin = [], 0
    for part in parts:
        end = begin + part.shape[1]
        found += [_move("penstock_move", row, to[begin:end]) for row, to in zip(part, result, strict=True)]
        begin = end
    moves = [move for move in found if move is not None]
    return moves if len(moves) == len(found) else None


def _move(name: str, source: torch.Tensor | None, to: torch.Tensor) -> Lowered | None:
    if not _is_plain(to) or to.numel() >= _MOST_NUMBERS:
        return None
    if source is None:
        rows = _rows(to, to)
        call = _Move(None, to.data_ptr(), *rows, 0, DTYPES[to.dtype]) if rows else None
        return None if call is None else Lowered(name, call, (to,))
    rows = _rows(source, to) if _is_plain(source) and source.shape == to.shape else None
    if rows is None:
        return None
    dtypes = DTYPES[source.dtype], DTYPES[to.dtype]
    return Lowered(name, _Move(source.data_ptr(), to.data_ptr(), *rows, *dtypes), (source, to))


def _is_plain(x: torch.Tensor) -> bool:
    return x.dtype in DTYPES and x.device.type == "cpu"


class _Rows(NamedTuple):
    """The numbers of two tensors of the same shape."""

    num_rows: int
    len: int
    from_stride: int
    to_stride: int


def _rows(source: torch.Tensor, to: torch.Tensor) -> _Rows | None:
    """As few rows as both are made of; None: they do not lie at equal distances."""
    length = min(_run(source), _run(to))
    strides = _stride(source, length), _stride(to, length)
    if length == 0 or strides[0] is None or strides[1] is None:
        return None
    return _Rows(to.numel() // length, length, strides[0], strides[1])


def _run(x: torch.Tensor) -> int:
    """How many numbers lie side by side."""
    run = 1
    for size, stride in zip(reversed(x.shape), reversed(x.stride()), strict=True):
        if size != 1 and stride != run:
            break
        run *= size
    return run


def _stride(x: torch.Tensor, length: int) -> int | None:
    """From each row of so many numbers to the next; None: not the same for all."""
    inside, found, count = 1, length, 1
    for size, stride in zip(reversed(x.shape), reversed(x.stride()), strict=True):
        if inside < length:
            inside *= size
        elif size != 1:
            if count == 1:
                found = stride
            elif stride != found * count:
                return None
            count *= size
    return found
