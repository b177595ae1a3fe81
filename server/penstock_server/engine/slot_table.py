"""What the host knows of every slot, as numbers: a row for each, so that a step of decodes reads all its rows at once.

`SlotState` is one slot of it, for what goes slot by slot.
"""

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from penstock_server.engine.adapters import NO_USE, AdapterUse
from penstock_server.engine.exclusions import Exclusions
from penstock_server.engine.limits import Limits
from penstock_server.engine.outcome import SlotError
from penstock_server.engine.plan import Appends, Numbers
from penstock_server.engine.sampling_params import Feature, SamplingParams

# What the sampler does for all rows at once from their parameters on the device.
_DRAWING = Feature.DRAW | Feature.TOP_K | Feature.TOP_P | Feature.MIN_P | Feature.TYPICAL_P


class _Column(IntEnum):
    LENGTH = 0
    PROMPT_LEN = 1
    NUM_BLOCKS = 2
    FEATURES = 3
    # Whether the slot is in use and not refused.
    IS_OPEN = 4
    # Whether a decode of the slot is plain: see `Decodes`.
    IS_PLAIN = 5
    # Positions that the plans so far compute.
    COMPUTED = 6


class Decodes(NamedTuple):
    """A step of plain decodes: one token of each slot, for which the sampler needs no more than arrays. All [num_rows].

    No slot has a grammar, an adapter, a penalty or another feature beyond drawing; none asks for top tokens, is refused
    or is late.
    """

    slots: Numbers
    # Positions that are computed, and those of the new tokens.
    starts: Numbers
    lengths: Numbers
    prompt_lens: Numbers
    # What any row needs.
    features: Feature


class SlotTable:
    """The numbers of all slots. A slot that is free has zeros."""

    def __init__(self, limits: Limits, is_gapless: bool = False) -> None:
        """`is_gapless`: a slot's spans must follow each other, from position 0 or from where its state is."""
        self._limits = limits
        self.is_gapless = is_gapless
        self._numbers: Numbers = np.zeros((limits.num_slots, len(_Column)), dtype=np.int64)

    def clear(self) -> None:
        """All slots are free."""
        self._numbers[:] = 0

    def free(self, slot: int) -> None:
        """This slot is free."""
        self._numbers[slot] = 0

    def use(
        self, slot: int, length: int, prompt_len: int, sampling: SamplingParams, is_free: bool
    ) -> "SlotState":
        """A new state of a slot without blocks. `is_free`: it has neither a grammar nor an adapter."""
        return SlotState(self._numbers[slot], length, prompt_len, sampling, is_free)

    def decodes(self, spans: Numbers) -> Decodes | None:
        """A step over spans, [3, num_spans] of slots, starts and lengths; None unless all are valid plain decodes.

        These then count as computed.
        """
        limits, (slots, starts, lens) = self._limits, spans
        if not 0 < len(slots) <= min(limits.num_slots, limits.max_step_tokens):
            return None
        if slots.max() >= limits.num_slots or (lens != 1).any() or np.bincount(slots).max() > 1:
            return None
        rows = self._numbers[slots]
        lengths = rows[:, _Column.LENGTH]
        holds = (
            (rows[:, _Column.IS_PLAIN] == 1)
            & (starts == lengths - 1)
            & (starts < rows[:, _Column.NUM_BLOCKS] * limits.block_size)
            & (lengths < limits.max_sequence_len)
        )
        if self.is_gapless:
            holds &= rows[:, _Column.COMPUTED] == starts
        if not holds.all():
            return None
        if self.is_gapless:
            self._numbers[slots, _Column.COMPUTED] = starts + 1
        features = Feature(int(np.bitwise_or.reduce(rows[:, _Column.FEATURES])))
        return Decodes(slots, starts, lengths, rows[:, _Column.PROMPT_LEN], features)

    def append(self, appends: Appends) -> Numbers | None:
        """Give slots more blocks; how many each had. None, and nothing is changed, unless all are valid."""
        limits, slots = self._limits, appends.slots
        if slots.max() >= limits.num_slots or np.bincount(slots).max() > 1:
            return None
        rows = self._numbers[slots]
        firsts = rows[:, _Column.NUM_BLOCKS]
        fits = (rows[:, _Column.IS_OPEN] == 1) & (firsts + appends.counts <= limits.max_blocks)
        if not fits.all() or (appends.blocks >= limits.num_blocks).any():
            return None
        self._numbers[slots, _Column.NUM_BLOCKS] += appends.counts
        return firsts

    def grow(self, slots: Numbers) -> None:
        """These slots, each once, have a token more."""
        self._numbers[slots, _Column.LENGTH] += 1


class SlotState:
    """What the host knows of one slot in use."""

    __slots__ = (
        "_is_late",
        "_is_simple",
        "_numbers",
        "_refusal",
        "adapter",
        "exclusions",
        "features",
        "prompt_len",
        "sampling",
    )

    def __init__(
        self, numbers: Numbers, length: int, prompt_len: int, sampling: SamplingParams, is_free: bool
    ) -> None:
        self._numbers = numbers
        self.sampling = sampling
        self.features = sampling.features()
        self.exclusions: Exclusions | None = None
        self.adapter: AdapterUse = NO_USE
        self.prompt_len = prompt_len
        self._is_simple = is_free and not (self.features & ~_DRAWING or sampling.num_top_logprobs)
        self._is_late = False
        self._refusal: SlotError | None = None
        numbers[:] = (length, prompt_len, 0, self.features, True, self._is_simple, 0)

    @property
    def length(self) -> int:
        """Tokens, those that the device still computes included."""
        return int(self._numbers[_Column.LENGTH])

    @length.setter
    def length(self, length: int) -> None:
        self._numbers[_Column.LENGTH] = length

    @property
    def num_blocks(self) -> int:
        """Blocks that it holds."""
        return int(self._numbers[_Column.NUM_BLOCKS])

    @num_blocks.setter
    def num_blocks(self, num_blocks: int) -> None:
        self._numbers[_Column.NUM_BLOCKS] = num_blocks

    @property
    def computed(self) -> int:
        """Positions that the plans so far compute."""
        return int(self._numbers[_Column.COMPUTED])

    @computed.setter
    def computed(self, computed: int) -> None:
        self._numbers[_Column.COMPUTED] = computed

    @property
    def is_late(self) -> bool:
        """Whether it sat its last step out: plans in flight may count on a token that it did not get."""
        return self._is_late

    @is_late.setter
    def is_late(self, is_late: bool) -> None:
        self._is_late = is_late
        self._tell_if_plain()

    @property
    def refusal(self) -> SlotError | None:
        """Why the slot is refused, until it is retired: plans in flight may depend on what was refused."""
        return self._refusal

    @refusal.setter
    def refusal(self, refusal: SlotError | None) -> None:
        self._refusal = refusal
        self._numbers[_Column.IS_OPEN] = refusal is None
        self._tell_if_plain()

    def _tell_if_plain(self) -> None:
        self._numbers[_Column.IS_PLAIN] = self._is_simple and not self._is_late and self._refusal is None
