"""The limits of a shard: how many slots and blocks, how long a sequence, how large a step."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What a plan must keep to; reported by Describe."""

    num_slots: int
    num_blocks: int
    block_size: int
    vocab_size: int
    max_sequence_len: int
    max_step_tokens: int

    @property
    def max_blocks(self) -> int:
        """Blocks that one slot can hold."""
        return -(-self.max_sequence_len // self.block_size)
