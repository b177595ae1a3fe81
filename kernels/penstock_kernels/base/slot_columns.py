"""The numbers that the host keeps of a slot: the layout of a row that `native.stage` reads (src/stage.c)."""

from enum import IntEnum


class SlotColumn(IntEnum):
    """Columns of int64."""

    LENGTH = 0
    PROMPT_LEN = 1
    NUM_BLOCKS = 2
    FEATURES = 3
    # Whether the slot is in use and not refused.
    IS_OPEN = 4
    KIND = 5
    # Positions that the plans so far compute.
    COMPUTED = 6
    # For `native.stage`, to see a slot that comes twice.
    SEEN = 7


class SlotKind(IntEnum):
    """Kinds of decodes of a slot."""

    # A decode that arrays cannot describe.
    OTHER = 0
    # Its row is sampled apart.
    APART = 1
    # Its row is chosen as a plain one is, under a mask.
    MASKED = 2
    PLAIN = 3
