"""The host's data of all slots, as numbers: a row for each, so that a step of decodes reads all its rows at once.

`SlotState` is one slot of it, for what goes slot by slot.
"""

from collections.abc import Mapping
from itertools import repeat
from typing import NamedTuple

import numpy as np
import torch
from penstock_kernels.base.slot_columns import SlotColumn, SlotKind
from penstock_kernels.native.choose import SlotRows
from penstock_kernels.native.decode_step import DecodeStep
from penstock_kernels.native.recording import Calls
from penstock_kernels.native.stage import Stager

from penstock_server.engine.adapters import NO_USE, AdapterUse
from penstock_server.engine.drafted import Drafted
from penstock_server.engine.exclusions import Exclusions
from penstock_server.engine.limits import Limits
from penstock_server.engine.outcome import SlotError
from penstock_server.engine.plan import Appends, Numbers
from penstock_server.engine.sampling_params import Feature, SamplingParams

# The features that the sampler applies to all rows at once from their parameters on the device.
_DRAWING = Feature.DRAW | Feature.TOP_K | Feature.TOP_P | Feature.MIN_P | Feature.TYPICAL_P

# So many drafts of a span that is not open.
_CLOSED = -1


class Decodes(NamedTuple):
    """A step of decodes: one token of each slot, and those that are drafted behind it, each of which is a row.

    No slot has an adapter, is refused or is late. Rows are plain, and then the sampler needs no more than arrays: no
    grammar, no penalty or another feature beyond drawing, no top tokens. Those that are not are known one by one; where
    anything is drafted there are none.
    """

    # int64: slots and positions of all rows, [2, num_rows], of which the last only fill up; then rows, slots, lengths
    # and prompt lengths of the decodes, [4, num_decodes].
    numbers: Numbers
    num_rows: int
    num_decodes: int
    # Numbers of the rows that are not plain.
    apart: list[int]
    # The features that any plain row needs, as `Feature`.
    features: int
    # None where nothing is drafted.
    drafted: Drafted | None = None

    @property
    def slots(self) -> Numbers:
        """[num_decodes]; a slot with drafts comes several times."""
        return self.column(1)

    @property
    def growing(self) -> Numbers:
        """The slots that get a token whether drafts are right or not, each once, but for those that are not plain."""
        if self.drafted is not None:
            return self.slots[self.drafted.firsts]
        return np.delete(self.slots, self.apart) if self.apart else self.slots

    def column(self, number: int) -> Numbers:
        """A column of the decodes, on the host: [num_decodes]."""
        begin = 2 * self.num_rows + number * self.num_decodes
        return self.numbers[begin : begin + self.num_decodes]


class SlotTable:
    """The numbers of all slots. A slot that is free has zeros."""

    def __init__(self, limits: Limits, is_gapless: bool = False) -> None:
        """`is_gapless`: a slot's spans must follow each other, from position 0 or from where its state is."""
        self._limits = limits
        self.is_gapless = is_gapless
        self._numbers: Numbers = np.zeros((limits.num_slots, len(SlotColumn)), dtype=np.int64)
        self._stager = Stager(
            self._numbers,
            block_size=limits.block_size,
            max_len=limits.max_sequence_len,
            spare=limits.num_slots,
            is_gapless=is_gapless,
        )

    def clear(self) -> None:
        """All slots are free."""
        self._numbers[:] = 0

    def free(self, slot: int) -> None:
        """This slot is free."""
        self._numbers[slot] = 0

    def use(
        self, slot: int, length: int, prompt_len: int, sampling: SamplingParams, kind: SlotKind
    ) -> "SlotState":
        """A new state of a slot without blocks. `kind`: what its grammar and its adapter leave it."""
        return SlotState(self._numbers[slot], length, prompt_len, sampling, kind)

    def decodes(self, spans: Numbers, num_rows: int, drafted: Drafted | None = None) -> Decodes | None:
        """A step over spans, [3, count] of slots, starts and lengths, filled up to so many rows.

        None unless all are valid decodes, of which one at least is plain or masked, or all are plain, where anything
        is drafted; and where
        there is no compiled library.
        """
        count = spans.shape[1]
        if not 0 < count <= min(self._limits.num_slots, self._limits.max_step_tokens):
            return None
        staged = self._stager.stage(spans, num_rows, None if drafted is None else drafted.counts)
        if staged is None or (staged.apart and drafted is not None):
            return None
        num_decodes = count if drafted is None else drafted.num_rows
        if drafted is not None and drafted.has_trees:
            lengths = 2 * (num_rows + num_decodes)
            staged.numbers[lengths : lengths + num_decodes] -= drafted.shifts
        return Decodes(staged.numbers, num_rows, num_decodes, staged.apart, staged.features, drafted)

    def decode_step(
        self, calls: Calls, inputs: torch.Tensor, logits: torch.Tensor, kept: SlotRows
    ) -> DecodeStep:
        """Steps over these slots by a recorded one."""
        return DecodeStep(self._stager, calls, inputs, logits, kept)

    def settled(self, spans: Numbers, open_drafts: Mapping[int, int]) -> Numbers | None:
        """Spans, [3, count], of which the open ones begin where their slots stand.

        None unless all drafts would fit; and where there is no compiled library.
        """
        if not spans.size:
            return None
        numbers = map(open_drafts.get, spans[0].tolist(), repeat(_CLOSED))
        drafts = np.fromiter(numbers, np.int64, spans.shape[1])
        return self._stager.settle(spans, drafts, self._limits.max_step_tokens)

    def append_here(self, appends: Appends, block_table: torch.Tensor) -> bool:
        """Give slots more blocks, also in the rows, which are on the host. False: nothing is changed, try `append`."""
        columns = appends.slots, appends.counts, appends.blocks
        return self._stager.append(columns, block_table, self._limits.num_blocks)

    def append(self, appends: Appends) -> Numbers | None:
        """Give slots more blocks; how many each had. None, and nothing is changed, unless all are valid."""
        limits, slots = self._limits, appends.slots
        if slots.max() >= limits.num_slots or np.bincount(slots).max() > 1:
            return None
        rows = self._numbers[slots]
        firsts = rows[:, SlotColumn.NUM_BLOCKS]
        fits = (rows[:, SlotColumn.IS_OPEN] == 1) & (firsts + appends.counts <= limits.max_blocks)
        if not fits.all() or (appends.blocks >= limits.num_blocks).any():
            return None
        self._numbers[slots, SlotColumn.NUM_BLOCKS] += appends.counts
        return firsts

    def grow(self, slots: Numbers) -> None:
        """These slots, each once, have a token more, and all others are computed."""
        if self.is_gapless:
            self._numbers[slots, SlotColumn.COMPUTED] = self._numbers[slots, SlotColumn.LENGTH]
        self._numbers[slots, SlotColumn.LENGTH] += 1


class SlotState:
    """The host's data of one slot in use."""

    __slots__ = (
        "_is_late",
        "_kind",
        "_numbers",
        "_refusal",
        "adapter",
        "exclusions",
        "features",
        "prompt_len",
        "sampling",
    )

    def __init__(
        self, numbers: Numbers, length: int, prompt_len: int, sampling: SamplingParams, kind: SlotKind
    ) -> None:
        self._numbers = numbers
        self.sampling = sampling
        self.features = sampling.features()
        self.exclusions: Exclusions | None = None
        self.adapter: AdapterUse = NO_USE
        self.prompt_len = prompt_len
        is_drawn = not (self.features & ~_DRAWING or sampling.num_top_logprobs)
        self._kind = kind if is_drawn else min(kind, SlotKind.APART)
        self._is_late = False
        self._refusal: SlotError | None = None
        numbers[:] = (length, prompt_len, 0, self.features, True, self._kind, 0, 0)

    @property
    def length(self) -> int:
        """Tokens, those that the device still computes included."""
        return int(self._numbers[SlotColumn.LENGTH])

    @length.setter
    def length(self, length: int) -> None:
        self._numbers[SlotColumn.LENGTH] = length

    @property
    def num_blocks(self) -> int:
        """Blocks that it holds."""
        return int(self._numbers[SlotColumn.NUM_BLOCKS])

    @num_blocks.setter
    def num_blocks(self, num_blocks: int) -> None:
        self._numbers[SlotColumn.NUM_BLOCKS] = num_blocks

    @property
    def computed(self) -> int:
        """Positions that the plans so far compute."""
        return int(self._numbers[SlotColumn.COMPUTED])

    @computed.setter
    def computed(self, computed: int) -> None:
        self._numbers[SlotColumn.COMPUTED] = computed

    @property
    def is_late(self) -> bool:
        """Whether it sat its last step out: plans in flight may count on a token that it did not get."""
        return self._is_late

    @is_late.setter
    def is_late(self, is_late: bool) -> None:
        self._is_late = is_late
        self._tell_kind()

    @property
    def refusal(self) -> SlotError | None:
        """Why the slot is refused, until it is retired: plans in flight may depend on what was refused."""
        return self._refusal

    @refusal.setter
    def refusal(self, refusal: SlotError | None) -> None:
        self._refusal = refusal
        self._numbers[SlotColumn.IS_OPEN] = refusal is None
        self._tell_kind()

    def _tell_kind(self) -> None:
        is_open = not self._is_late and self._refusal is None
        self._numbers[SlotColumn.KIND] = self._kind if is_open else SlotKind.OTHER
