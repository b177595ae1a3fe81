"""Checks and applies in C the usual parts of a plan: blocks, open spans and decodes. Otherwise each row needs objects
of Python."""

import ctypes
from typing import Any, NamedTuple

import numpy as np
import torch

from penstock_kernels.base.slot_columns import SlotColumn
from penstock_kernels.native.library import library

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Columns = tuple[Numbers, Numbers, Numbers]


class StageCall(ctypes.Structure):
    """`Stage` of src/stage.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("spans", "drafts", "table", "padded", "columns", "apart")),
        *(
            (name, ctypes.c_int64)
            for name in ("num_apart", "features", "num_spans", "num_positions", "num_rows")
        ),
        *((name, ctypes.c_int64) for name in ("num_slots", "block_size", "max_len", "spare")),
        *((name, ctypes.c_int64) for name in ("stamp", "gapless")),
    )


class _Append(ctypes.Structure):
    """`Append` of src/stage.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("slots", "counts", "blocks", "table", "block_table")),
        *((name, ctypes.c_int64) for name in ("stride", "num_appends", "num_slots")),
        *((name, ctypes.c_int64) for name in ("max_blocks", "num_blocks", "stamp")),
    )


class _Settle(ctypes.Structure):
    """`Settle` of src/stage.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("spans", "drafts", "table")),
        *((name, ctypes.c_int64) for name in ("num_spans", "num_slots", "block_size", "max_len", "budget")),
    )


class Staged(NamedTuple):
    """Valid decodes, each of another slot."""

    # Slots and positions of all rows, then rows, slots, lengths and prompt lengths of the decodes.
    numbers: Numbers
    # Numbers of the rows that are not `SlotKind.PLAIN`.
    apart: list[int]
    # The features that any plain row needs, as bits.
    features: int


class Stager:
    """Stages over one table of slots, [num_slots, len(SlotColumn)]; `spare` is the slot of rows that only fill up."""

    def __init__(
        self, table: Numbers, *, block_size: int, max_len: int, spare: int, is_gapless: bool = False
    ) -> None:
        assert table.shape[1] == len(SlotColumn), "the layout of src/stage.c"
        # `call` points to it as long as this object lives.
        self._table = table
        self.call = StageCall(
            table=table.ctypes.data,
            num_slots=len(table),
            block_size=block_size,
            max_len=max_len,
            spare=spare,
            gapless=is_gapless,
        )
        self._stage: Any = getattr(library(), "penstock_stage", None)
        self._append: Any = getattr(library(), "penstock_append", None)
        self._settle: Any = getattr(library(), "penstock_settle", None)
        self._settling = _Settle(
            table=table.ctypes.data, num_slots=len(table), block_size=block_size, max_len=max_len
        )

    def append(self, appends: Columns, block_table: torch.Tensor, num_blocks: int) -> bool:
        """Give slots more blocks, of so many in all. Columns: slots, counts, blocks one after the other.

        block_table: [num_slots, max_blocks] int32 on the host, rows of any stride. False, and nothing is changed,
        unless each slot comes once and may have its blocks; and where there is no compiled library.
        """
        if self._append is None:
            return False
        self.call.stamp += 1
        kept = [np.ascontiguousarray(column) for column in appends]
        call = _Append(
            *(column.ctypes.data for column in kept),
            self.call.table,
            block_table.data_ptr(),
            block_table.stride(0),
            len(appends[0]),
            len(self._table),
            block_table.shape[1],
            num_blocks,
            self.call.stamp,
        )
        done: int = self._append(ctypes.byref(call))
        return done == 0

    def settle(self, spans: Numbers, drafts: Numbers, budget: int) -> Numbers | None:
        """Spans, [3, num_spans], of which the open ones begin where their slots stand, at the last token.

        `drafts`: [num_spans], how many tokens may be drafted in each at most; below 0: it is not open. None unless all
        of these fit their slots' blocks and, with the spans, a budget of positions; and where there is no compiled
        library.
        """
        if self._settle is None:
            return None
        settled, call = np.array(spans, order="C"), self._settling
        call.spans, call.drafts = settled.ctypes.data, drafts.ctypes.data
        call.num_spans, call.budget = spans.shape[1], budget
        fits: bool = self._settle(ctypes.byref(call)) == 0
        return settled if fits else None

    def stage(self, spans: Numbers, num_rows: int, drafts: Numbers | None = None) -> Staged | None:
        """Spans are [3, num_spans] of slots, starts and lengths, filled up to so many rows.

        `drafts`: [num_spans], how many tokens are drafted behind each, each of which has a row; only plain slots may
        have any. None, and nothing is changed, unless all are valid decodes, each of another slot, and one of them is
        plain or masked; and where there is no compiled library.
        """
        if self._stage is None:
            return None
        if not spans.flags.c_contiguous:
            spans = np.ascontiguousarray(spans)
        count = spans.shape[1] if drafts is None else spans.shape[1] + int(drafts.sum())
        numbers = self.begin(spans, num_rows, count, drafts)
        if self._stage(ctypes.byref(self.call)) != 0:
            return None
        last = 2 * num_rows + 4 * count
        apart = numbers[last : last + self.call.num_apart].tolist() if self.call.num_apart else []
        return Staged(numbers, apart, self.call.features)

    def begin(
        self, spans: Numbers, num_rows: int, count: int, drafts: Numbers | None = None, num_more: int = 0
    ) -> Numbers:
        """Have `call` point to contiguous spans of so many positions, and to new numbers, which are those of `Staged`,
        then `count` of rows that are apart, and `num_more` for the caller."""
        call = self.call
        numbers = np.empty(2 * num_rows + 5 * count + num_more, dtype=np.int64)
        place = numbers.ctypes.data
        call.spans = spans.ctypes.data
        call.drafts = None if drafts is None else drafts.ctypes.data
        call.padded = place
        call.columns = place + 16 * num_rows
        call.apart = place + 16 * num_rows + 32 * count
        call.num_spans, call.num_positions, call.num_rows = spans.shape[1], count, num_rows
        call.stamp += 1
        return numbers
