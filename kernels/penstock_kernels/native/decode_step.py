"""A step of plain decodes by one call into C: checked, computed by a recorded step, and its tokens chosen."""

import ctypes
from typing import Any, NamedTuple

import numpy as np
import torch

from penstock_kernels.native.choose import ChooseCall, SlotRows, no_memory
from penstock_kernels.native.library import WORTH_THREADS, library
from penstock_kernels.native.recording import Calls
from penstock_kernels.native.stage import Numbers, StageCall, Stager

# What `penstock_decode_step` returns where it has not computed a step.
_NOT_PLAIN, _NO_MEMORY = -1, -2
_NUM_LAPS = 3
# Fields of `ChooseCall` that follow from where the slots and the logits are.
_ROWS = "tokens", "params", "seeds"
_STRIDES = "stride", "token_stride", "param_stride", "seed_stride"


class _Call(ctypes.Structure):
    """`DecodeStep` of src/decode_step.c, field by field."""

    _fields_ = (
        ("stage", ctypes.POINTER(StageCall)),
        ("choose", ctypes.POINTER(ChooseCall)),
        *((name, ctypes.c_void_p) for name in ("calls", "inputs")),
        *((name, ctypes.c_int64) for name in ("input_stride", "num_calls")),
        ("laps_us", ctypes.c_int64 * _NUM_LAPS),
    )


class Decoded(NamedTuple):
    """What the slots chose, all [num_slots], and what it took to check, to compute and to choose."""

    slots: Numbers
    token_ids: Numbers
    logprobs: "np.ndarray[Any, np.dtype[np.float32]]"
    finite: "np.ndarray[Any, np.dtype[np.bool_]]"
    laps_us: list[int]


class DecodeStep:
    """Steps of one recorded size."""

    def __init__(
        self, stager: Stager, calls: Calls, inputs: torch.Tensor, logits: torch.Tensor, kept: SlotRows
    ) -> None:
        """`calls` read slots and positions in `inputs`, [2, size], and write `logits`, [size, vocab_size]."""
        self._stager = stager
        self._size, self._vocab_size = logits.shape
        # All that is pointed to.
        self._kept = calls, inputs, logits, kept
        self._calls = calls
        self._num_threads = torch.get_num_threads()
        self._choose = ChooseCall(
            logits=logits.data_ptr(),
            **{name: tensor.data_ptr() for name, tensor in zip(_ROWS, kept, strict=True)},
            **{name: tensor.stride(0) for name, tensor in zip(_STRIDES, (logits, *kept), strict=True)},
            len=self._vocab_size,
        )
        self._call = _Call(
            stage=ctypes.pointer(stager.call),
            choose=ctypes.pointer(self._choose),
            calls=ctypes.addressof(calls.entries),
            inputs=inputs.data_ptr(),
            input_stride=inputs.stride(0),
            num_calls=len(calls),
        )
        compiled = library()
        assert compiled is not None, "the step was recorded with it"
        self._step: Any = compiled.penstock_decode_step

    def run(self, spans: Numbers) -> Decoded | None:
        """Spans are [3, count] of slots, starts and lengths, with 0 < count <= size.

        None, and nothing is changed, unless all are valid decodes of different plain slots. Slots that get a token are
        one longer. Raises what an op of the step raises; then nothing is changed, either.
        """
        count, choose = spans.shape[1], self._choose
        num_bytes = 5 * count
        spans = np.ascontiguousarray(spans)
        numbers = self._stager.begin(spans, self._size, count, num_more=count + -(-num_bytes // 8))
        columns = 2 * self._size
        slots, first = columns + count, columns + 5 * count
        place = numbers.ctypes.data
        choose.slots = place + 8 * slots
        choose.lengths = choose.slots + 8 * count
        choose.token_ids = place + 8 * first
        choose.logprobs = choose.token_ids + 8 * count
        choose.finite = choose.logprobs + 4 * count
        choose.num_rows = count
        choose.num_threads = self._num_threads if count * self._vocab_size >= WORTH_THREADS else 1
        done = self._step(ctypes.byref(self._call))
        if done == _NOT_PLAIN:
            return None
        if done < len(self._calls):
            raise no_memory() if done == _NO_MEMORY else self._calls.failure(done)
        found = numbers[first + count :].view(np.uint8)
        return Decoded(
            numbers[slots : slots + count],
            numbers[first : first + count],
            found[: 4 * count].view(np.float32),
            found[4 * count : num_bytes].view(np.bool_),
            self._call.laps_us[:],
        )
