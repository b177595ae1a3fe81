"""The masks of grammars in C: a word of a mask at a time, most of which allow all their tokens or none."""

import ctypes

import torch

from penstock_kernels.native.library import library, run


class _Call(ctypes.Structure):
    """`Bitmask` of src/bitmask.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("scores", "rows", "bits")),
        *((name, ctypes.c_int64) for name in ("stride", "num_rows", "num_masks", "num_words", "len")),
    )


def supports(_scores: torch.Tensor, rows: torch.Tensor, _bits: torch.Tensor) -> bool:
    """Whether `apply_bitmask` can take these, as the op has checked them."""
    return rows.dtype == torch.int64 and rows.is_contiguous() and library() is not None


def apply_bitmask(scores: torch.Tensor, rows: torch.Tensor, bits: torch.Tensor) -> None:
    """The op in C."""
    num_rows, vocab_size = scores.shape
    call = _Call(
        scores.data_ptr(),
        rows.data_ptr(),
        bits.data_ptr(),
        scores.stride(0),
        num_rows,
        *bits.shape,
        vocab_size,
    )
    run("penstock_apply_bitmask", call, scores, rows, bits, failure=lambda: _unknown(rows, num_rows))


def _unknown(rows: torch.Tensor, num_rows: int) -> IndexError:
    wrong = rows[(rows < 0) | (rows >= num_rows)]
    return IndexError(f"apply_bitmask: row {int(wrong[0])} is not below {num_rows}")
