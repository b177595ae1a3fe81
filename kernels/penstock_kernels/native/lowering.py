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
_PAIRS = {_ATEN.mul.Tensor: "penstock_product", _ATEN.add.Tensor: "penstock_addition"}


class _Move(ctypes.Structure):
    """`Move` of src/moves.c, field by field."""

    _fields_ = (
        ("source", ctypes.c_void_p),
        ("to", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("num_rows", "len", "from_stride", "to_stride")),
        *((name, ctypes.c_int32) for name in ("from_dtype", "to_dtype")),
        ("factor", ctypes.c_float),
        ("num_threads", ctypes.c_int32),
    )


class _Pair(ctypes.Structure):
    """`Pair` of src/moves.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("left", "right", "to")),
        *((name, ctypes.c_int64) for name in ("num_rows", "len", "left_stride", "right_stride", "to_stride")),
        ("dtype", ctypes.c_int32),
    )


class _Equal(ctypes.Structure):
    """`Equal` of src/moves.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("numbers", "to")),
        *((name, ctypes.c_int64) for name in ("count", "number")),
    )


class _Pick(ctypes.Structure):
    """`Pick` of src/moves.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("from", "to", "places")),
        *((name, ctypes.c_int64) for name in ("num_rows", "count", "size", "from_stride")),
    )


class _Put(ctypes.Structure):
    """`Put` of src/moves.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("from", "to", "places")),
        *((name, ctypes.c_int64) for name in ("num_rows", "count", "len")),
        *((name, ctypes.c_int64) for name in ("from_stride", "to_stride", "places_stride")),
        ("dtype", ctypes.c_int32),
    )


class Lowered(NamedTuple):
    """The call that takes the place of an op; `kept`: all tensors that its arguments point to."""

    name: str
    call: ctypes.Structure
    kept: tuple[torch.Tensor, ...]


def lower(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> list[Lowered] | None:
    """The calls in C that take the place of an op, if it is one of a few, on numbers in rows; else None.

    Only copies may be of many numbers.

    `result`: what the op returned.
    """
    if func is _ATEN.cat.default:
        return _moves_of_rows(args[0], args[1] if len(args) > 1 else 0, result)
    if func in _PAIRS and not kwargs and isinstance(args[1], torch.Tensor):
        return _pairs(_PAIRS[func], args[0], args[1], result)
    lowered = _lower(func, args, kwargs, result)
    return None if lowered is None else [lowered]


def _lower(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Lowered | None:
    if func is _ATEN.zeros_like.default:
        return move("penstock_move", None, result)
    if func is _ATEN.full.default:
        # The numbers are the same every time.
        return move("penstock_move", result.clone(), result)
    if func in {_ATEN.to.dtype, _ATEN._to_copy.default, _ATEN.clone.default}:
        return move("penstock_move", args[0], result)
    if func is _ATEN.copy_.default:
        return move("penstock_move", args[1], args[0])
    if func is _ATEN.add_.Tensor and not kwargs and isinstance(args[1], torch.Tensor):
        return move("penstock_accumulate", args[1], args[0]) if args[1].dtype == args[0].dtype else None
    if func is _ATEN.mul_.Tensor and not kwargs and isinstance(args[1], torch.Tensor):
        return _pair("penstock_product", args[0], args[1], args[0])
    if func is _ATEN.mul.Tensor and not kwargs and isinstance(args[1], float):
        return move("penstock_scale", args[0], result, args[1]) if args[0].dtype == result.dtype else None
    if func is _ATEN.eq.Scalar:
        return _equal(args[0], args[1], result)
    if func is _ATEN.index_select.default:
        return _pick(args[0], args[1], args[2], result)
    if func is _ATEN.index_copy_.default:
        to, dim, places, source = args
        are_rows = to.dim() == source.dim() == 2 and places.dim() == 1
        return _put(to, dim, places.expand(len(source), -1), source) if are_rows else None
    if func is _ATEN.scatter_.value:
        to, dim, places, value = args
        return _put(to, dim, places, torch.full_like(places, value, dtype=to.dtype))
    return None


def _moves_of_rows(parts: list[torch.Tensor], dim: int, result: torch.Tensor) -> list[Lowered] | None:
    """Rows side by side: a copy of each row of each part."""
    is_one = result.dim() == 2 and dim in (1, -1) and all(part.dtype == result.dtype for part in parts)
    if not is_one or len(parts) * len(result) > _MOST_MOVES or not all(map(_is_plain, (*parts, result))):
        return None
    found, begin = [], 0
    for part in parts:
        end = begin + part.shape[1]
        found += [move("penstock_move", row, to[begin:end]) for row, to in zip(part, result, strict=True)]
        begin = end
    moves = [move for move in found if move is not None]
    return moves if len(moves) == len(found) else None


def move(name: str, source: torch.Tensor | None, to: torch.Tensor, factor: float = 1.0) -> Lowered | None:
    """The call of an op of src/moves.c that takes numbers of a tensor, or none, to another; None: no op takes them."""
    given = () if source is None else (source,)
    are_many = name == "penstock_move" and to.numel() >= _MOST_NUMBERS
    rows = _rows(to, *given, are_many=are_many)
    if rows is None:
        return None
    to_stride, *from_stride = rows.strides
    from_dtype = 0 if source is None else DTYPES[source.dtype]
    call = _Move(
        None if source is None else source.data_ptr(),
        to.data_ptr(),
        *rows.shape,
        *(from_stride or [to_stride]),
        to_stride,
        from_dtype,
        DTYPES[to.dtype],
        factor,
        torch.get_num_threads() if are_many else 1,
    )
    return Lowered(name, call, (to, *given))


def _pair(name: str, left: torch.Tensor, right: torch.Tensor, to: torch.Tensor) -> Lowered | None:
    rows = _rows(left, right, to)
    if rows is None or not left.dtype == right.dtype == to.dtype:
        return None
    addresses = (part.data_ptr() for part in (left, right, to))
    call = _Pair(*addresses, *rows.shape, *rows.strides, DTYPES[to.dtype])
    return Lowered(name, call, (left, right, to))


def _pairs(name: str, left: torch.Tensor, right: torch.Tensor, to: torch.Tensor) -> list[Lowered] | None:
    """Also where one of them is the same for several rows: then one for each part of the result, if these are few."""
    left, right = left.expand(to.shape), right.expand(to.shape)
    whole = _pair(name, left, right, to)
    if whole is not None:
        return [whole]
    if to.dim() < 2 or len(to) > _MOST_MOVES:
        return None
    found = [_pair(name, *parts) for parts in zip(left, right, to, strict=True)]
    parts = [part for part in found if part is not None]
    return parts if 0 < len(parts) == len(found) else None


def _pick(x: torch.Tensor, dim: int, places: torch.Tensor, to: torch.Tensor) -> Lowered | None:
    """Rows of a matrix, whatever their type."""
    if dim != 0 or not _are_rows(x, to) or not _are_places(places):
        return None
    size = x.element_size()
    addresses = (part.data_ptr() for part in (x, to, places))
    call = _Pick(*addresses, len(x), len(to), x.shape[1] * size, x.stride(0) * size)
    return Lowered("penstock_pick_rows", call, (x, to, places))


def _put(to: torch.Tensor, dim: int, places: torch.Tensor, source: torch.Tensor) -> Lowered | None:
    """Columns of a matrix. `places`: of each number of `source`."""
    is_one = dim == 1 and to.dtype == source.dtype and to.dtype in DTYPES
    if not (is_one and _are_rows(to, source) and _are_places(places)):
        return None
    addresses = (part.data_ptr() for part in (source, to, places))
    strides = (part.stride(0) for part in (source, to, places))
    call = _Put(*addresses, *source.shape, to.shape[1], *strides, DTYPES[to.dtype])
    return Lowered("penstock_put_columns", call, (to, places, source))


def _are_rows(*tensors: torch.Tensor) -> bool:
    return all(x.device.type == "cpu" and x.dim() == 2 and x.stride(1) == 1 for x in tensors)


def _are_places(places: torch.Tensor) -> bool:
    is_plain = places.device.type == "cpu" and places.dtype == torch.int64 and places.dim() > 0
    return is_plain and places.stride(-1) == 1


def _equal(numbers: torch.Tensor, number: Any, to: torch.Tensor) -> Lowered | None:
    are_few = numbers.dtype == torch.int64 and 0 < numbers.numel() < _MOST_NUMBERS
    if not (are_few and type(number) is int and numbers.device.type == "cpu" and numbers.is_contiguous()):
        return None
    call = _Equal(numbers.data_ptr(), to.data_ptr(), numbers.numel(), number)
    return Lowered("penstock_equal", call, (numbers, to))


def _is_plain(x: torch.Tensor) -> bool:
    return x.dtype in DTYPES and x.device.type == "cpu"


class _Rows(NamedTuple):
    """The numbers of tensors of the same shape: how many rows, of how many, and from one to the next in each tensor."""

    shape: tuple[int, int]
    strides: tuple[int, ...]


def _rows(*tensors: torch.Tensor, are_many: bool = False) -> _Rows | None:
    """The fewest rows that all tensors can be divided into; None where ops in C do not take the tensors: rows do not
    lie at equal distances, types or shapes differ, or there are too many numbers. `are_many`: any number will do, and
    there are rows for threads to share."""
    shape, count = tensors[0].shape, tensors[0].numel()
    is_right = 0 < count < _MOST_NUMBERS or are_many
    if not is_right or not all(_is_plain(x) and x.shape == shape for x in tensors):
        return None
    length = min(map(_run, tensors))
    length = min(length, shape[-1]) if are_many else length
    strides = [_stride(x, length) for x in tensors]
    known = tuple(stride for stride in strides if stride is not None)
    return _Rows((count // length, length), known) if len(known) == len(strides) else None


def _run(x: torch.Tensor) -> int:
    """The length of the runs of numbers that lie side by side."""
    run = 1
    for size, stride in zip(reversed(x.shape), reversed(x.stride()), strict=True):
        if size != 1 and stride != run:
            break
        run *= size
    return run


def _stride(x: torch.Tensor, length: int) -> int | None:
    """The stride from each row of `length` numbers to the next; None: it is not the same for all rows."""
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
