"""Rows of an embedding in C. With PyTorch, a check that the table has all tokens must come first."""

import ctypes

import torch

from penstock_kernels.native.library import library, run


class _Call(ctypes.Structure):
    """`Embedding` of src/embedding.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("ids", "table", "output")),
        *((name, ctypes.c_int64) for name in ("num_tokens", "num_rows", "row_bytes", "first")),
    )


def supports(token_ids: torch.Tensor, weight: torch.Tensor, *_: object) -> bool:
    """Whether `embedding` can take these."""
    return weight.device.type == "cpu" and token_ids.dtype == torch.int64 and library() is not None


def embedding(token_ids: torch.Tensor, weight: torch.Tensor, first: int) -> torch.Tensor:
    """The op in C."""
    output = torch.empty(len(token_ids), weight.shape[1], dtype=weight.dtype)
    call = _Call(
        token_ids.data_ptr(),
        weight.data_ptr(),
        output.data_ptr(),
        len(token_ids),
        weight.shape[0],
        weight.shape[1] * weight.itemsize,
        first,
    )
    run("penstock_embed", call, token_ids, weight, output)
    return output
