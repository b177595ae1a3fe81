"""A step of plain decodes, and of what is drafted behind them, by one call into C: checked, computed by a recorded
step, and its tokens chosen.
"""

import ctypes
from typing import Any, NamedTuple

import numpy as np
import torch

from penstock_kernels.native.choose import ChooseCall, SlotRows, no_memory
from penstock_kernels.native.library import WORTH_THREADS, library
from penstock_kernels.native.recording import Calls
from penstock_kernels.native.stage import Numbers, StageCall, Stager

# Results of `penstock_decode_step` where it has not computed a step.
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
        *((name, ctypes.c_void_p) for name in ("calls", "inputs", "drafted", "num_right")),
        *((name, ctypes.c_int64) for name in ("input_stride", "num_calls", "num_counted")),
        ("laps_us", ctypes.c_int64 * _NUM_LAPS),
    )


class Drafts(NamedTuple):
    """How many tokens are drafted behind each span, and all of them, one after the other."""

    counts: Numbers
    token_ids: Numbers


class Decoded(NamedTuple):
    """The tokens that the slots chose, a row for each, and the time it took to check, to compute and to choose."""

    slots: Numbers
    token_ids: Numbers
    logprobs: "np.ndarray[Any, np.dtype[np.float32]]"
    finite: "np.ndarray[Any, np.dtype[np.bool_]]"
    laps_us: list[int]
    # How many of the tokens drafted behind each span were right.
    num_right: Numbers


class DecodeStep:
    """Steps of one recorded size."""

    def __init__(
        self, stager: Stager, calls: Calls, inputs: torch.Tensor, logits: torch.Tensor, kept: SlotRows
    ) -> None:
        """`calls` read slots and positions in `inputs`, [2, size], and write `logits`, [size, vocab_size]."""
        self._stager = stager
        self._size, self._vocab_size = logits.shape
        # Everything that the call points to.
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

    def run(self, spans: Numbers, drafts: Drafts | None = None) -> Decoded | None:
        """Spans are [3, num_spans] of slots, starts and lengths; with what is drafted they have 0 < count <= size rows.

        None, and nothing is changed, unless all are valid decodes of different plain slots. Slots that get tokens are
        as much longer. Raises what an op of the step raises; then nothing is changed, either.
        """
        num_spans, choose = spans.shape[1], self._choose
        counts, drafted = (None, None) if drafts is None else map(np.ascontiguousarray, drafts)
        count = num_spans if drafted is None else num_spans + len(drafted)
        num_bytes = 5 * count
        spans = np.ascontiguousarray(spans)
        num_more = count + num_spans + -(-num_bytes // 8)
        numbers = self._stager.begin(spans, self._size, count, counts, num_more)
        columns = 2 * self._size
        slots, first = columns + count, columns + 5 * count
        place = numbers.ctypes.data
        choose.slots = place + 8 * slots
        choose.lengths = choose.slots + 8 * count
        right = first + count
        choose.token_ids = place + 8 * first
        choose.logprobs = place + 8 * (right + num_spans)
        choose.finite = choose.logprobs + 4 * count
        choose.num_rows = count
        choose.num_threads = self._num_threads if count * self._vocab_size >= WORTH_THREADS else 1
        self._call.num_right = place + 8 * right
        self._call.drafted = None if drafted is None else drafted.ctypes.data
        done = self._step(ctypes.byref(self._call))
        if done == _NOT_PLAIN:
            return None
        if done < len(self._calls):
            raise no_memory() if done == _NO_MEMORY else self._calls.failure(done)
        found = numbers[right + num_spans :].view(np.uint8)
        counted = self._call.num_counted
        return Decoded(
            numbers[slots : slots + counted],
            numbers[first : first + counted],
            found[: 4 * counted].view(np.float32),
            found[4 * count : 4 * count + counted].view(np.bool_),
            self._call.laps_us[:],
            numbers[right : right + num_spans],
        )
