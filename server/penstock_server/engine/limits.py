"""The limits of a shard: how many slots and blocks, how long a sequence, how large a step."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that a plan must keep to; reported by Describe."""

    num_slots: int
    num_blocks: int
    block_size: int
    vocab_size: int
    max_sequence_len: int
    max_step_tokens: int
    # Places for states beside those of the slots; 0 where there are none.
    num_snapshots: int = 0
    # States that a step keeps behind tokens that others are drafted behind: so many tokens it may draft.
    num_draft_states: int = 0

    @property
    def max_blocks(self) -> int:
        """Blocks that one slot can hold."""
        return -(-self.max_sequence_len // self.block_size)
