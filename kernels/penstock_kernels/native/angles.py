"""Cosines and sines of rotary embedding in C: otherwise eight small ops of PyTorch."""

import ctypes

import torch

from penstock_kernels.native.library import library, run

# Below this many angles, waking the other threads costs more than they save.
_WORTH_THREADS = 1 << 13


class _Call(ctypes.Structure):
    """`Angles` of src/angles.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("positions", "inv_freq", "cos", "sin")),
        *((name, ctypes.c_int64) for name in ("num_tokens", "half")),
        ("num_threads", ctypes.c_int32),
        ("amplitude", ctypes.c_float),
    )


def supports(*_: object) -> bool:
    """Whether `rotary_table` is compiled; then it takes all that the op lets through."""
    return library() is not None


def rotary_table(
    positions: torch.Tensor, inv_freq: torch.Tensor, amplitude: float, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """The op in C. A token's bits do not depend on the other tokens."""
    num_tokens, half = len(positions), len(inv_freq)
    cos, sin = torch.empty(num_tokens, 2 * half), torch.empty(num_tokens, 2 * half)
    call = _Call(
        positions.data_ptr(),
        inv_freq.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        num_tokens,
        half,
        torch.get_num_threads() if num_tokens * half >= _WORTH_THREADS else 1,
        amplitude,
    )
    run("penstock_angles", call, positions, inv_freq, cos, sin)
    return cos.to(dtype), sin.to(dtype)
