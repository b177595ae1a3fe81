"""The next token of each slot of a step in C, by what is kept of the slots: otherwise a dozen ops."""

import ctypes
from typing import NamedTuple

import torch

from penstock_kernels.base.devices import runs_kernels
from penstock_kernels.native.library import library, run
from penstock_kernels.native.sampling import num_threads


class ChooseCall(ctypes.Structure):
    """`Choose` of src/choose.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("logits", "slots", "lengths", "tokens", "params", "seeds")),
        *((name, ctypes.c_void_p) for name in ("token_ids", "logprobs", "finite")),
        *((name, ctypes.c_void_p) for name in ("masked", "bits", "possible")),
        *((name, ctypes.c_int64) for name in ("stride", "token_stride", "param_stride", "seed_stride")),
        *((name, ctypes.c_int64) for name in ("num_rows", "num_masks", "num_words", "len")),
        *((name, ctypes.c_int32) for name in ("draws", "num_threads")),
    )


class SlotRows(NamedTuple):
    """Tensors with a row for each slot; rows may have any stride."""

    tokens: torch.Tensor  # [num_slots, max_len] int32
    params: torch.Tensor  # [num_slots, ...] float32: temperature, top_k, top_p, min_p, typical_p, others
    seeds: torch.Tensor  # [num_slots] int64, the bits of the unsigned seed


class Masks(NamedTuple):
    """Which tokens some of the rows may choose."""

    rows: torch.Tensor  # [num_masks] int64, contiguous, in range, each once
    bits: torch.Tensor  # [num_masks, num_words] int32, as in `apply_bitmask`, contiguous
    possible: torch.Tensor  # [num_masks] bool: whether any token is left, to be written

    @classmethod
    def of(cls, rows: torch.Tensor, bits: torch.Tensor) -> "Masks":
        """The masks of these rows."""
        return cls(rows, bits, torch.empty(len(rows), dtype=torch.bool))


class Chosen(NamedTuple):
    """Chosen tokens, their log probabilities, and whether the logits of a row are finite, as in `Logprobs`."""

    token_ids: torch.Tensor
    logprobs: torch.Tensor
    finite: torch.Tensor


_NO_MASKS = Masks.of(torch.empty(0, dtype=torch.int64), torch.empty(0, 0, dtype=torch.int32))


def supports(logits: torch.Tensor) -> bool:
    """Whether `choose` computes on this device, and takes logits of this form."""
    return (
        logits.device.type == "cpu"
        and logits.dtype == torch.float32
        and logits.stride(1) == 1
        and not runs_kernels(logits.device)
        and library() is not None
    )


def choose(
    logits: torch.Tensor,
    slots: torch.Tensor,
    lengths: torch.Tensor,
    kept: SlotRows,
    draws: bool,
    masks: Masks = _NO_MASKS,
) -> Chosen:
    """The token that each row chooses, which is kept at its length: the bits of `apply_bitmask`, `draw` and
    `token_logprobs`, of which the latter knows no mask.

    logits: [num_rows, vocab_size]; slots, lengths: [num_rows] int64, contiguous, in range, each place once: the caller
    checked that. `draws`: whether the temperature of any row without a mask is not 0.
    """
    num_rows, vocab_size = logits.shape
    chosen = Chosen(
        torch.empty(num_rows, dtype=torch.int64),
        torch.empty(num_rows),
        torch.empty(num_rows, dtype=torch.bool),
    )
    call = ChooseCall(
        logits.data_ptr(),
        slots.data_ptr(),
        lengths.data_ptr(),
        *(tensor.data_ptr() for tensor in kept),
        *(tensor.data_ptr() for tensor in chosen),
        *(tensor.data_ptr() for tensor in masks),
        logits.stride(0),
        *(tensor.stride(0) for tensor in kept),
        num_rows,
        *masks.bits.shape,
        vocab_size,
        draws,
        num_threads(logits),
    )
    run("penstock_choose", call, logits, slots, lengths, kept, masks, chosen, failure=no_memory)
    return chosen


def no_memory() -> MemoryError:
    """Why `choose` failed."""
    return MemoryError("no memory for the work of a draw")
