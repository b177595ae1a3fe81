"""Outcomes: what came of a plan. Plain types, with no protobuf and no tensors."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from penstock_server.base.errors import ErrorCode
from penstock_server.engine.plan import Numbers


@dataclass(frozen=True, slots=True)
class SlotError:
    """The failure of one slot; the other slots of the step are not affected."""

    slot: int
    code: ErrorCode
    message: str


def not_finite(slot: int) -> SlotError:
    """The error of a slot whose logits are infinite or not a number."""
    return SlotError(slot, ErrorCode.NOT_FINITE, "the model's logits are not finite")


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The most likely tokens of a sampled position, most likely first."""

    slot: int
    token_ids: list[int]
    logprobs: list[float]


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log probabilities of the prompt tokens from `start` on, and the most likely tokens in the place of each.

    A rank is the place of the prompt token itself among all tokens; 1 is the most likely.
    """

    slot: int
    start: int
    logprobs: list[float]
    # By position, most likely first; as many as the slot asked for.
    top_ids: list[list[int]]
    top_logprobs: list[list[float]]
    ranks: list[int]


class Timings(NamedTuple):
    """Where the time of a step went."""

    upload_us: int = 0
    forward_us: int = 0
    sample_us: int = 0
    download_us: int = 0


class Tokens(NamedTuple):
    """The tokens that were chosen; all columns are [num_tokens]."""

    slots: Numbers
    ids: Numbers
    logprobs: "np.ndarray[Any, np.dtype[np.float32]]"

    @classmethod
    def of(cls, slots: Sequence[int], ids: Sequence[int], logprobs: Sequence[float]) -> "Tokens":
        """Tokens from lists."""
        return cls(np.array(slots, np.int64), np.array(ids, np.int64), np.array(logprobs, np.float32))


NO_TOKENS = Tokens.of([], [], [])
NO_TIME = Timings()


@dataclass(slots=True)
class Outcome:
    """The result of one plan."""

    epoch: int
    step: int
    sampled: Tokens = NO_TOKENS
    top_tokens: list[TopTokens] = field(default_factory=list)
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    errors: list[SlotError] = field(default_factory=list)
    # Slots that were to get a token and sat the step out, because the mask of their grammar was late.
    late_slots: list[int] = field(default_factory=list)
    # By slot: how many tokens were drafted for it.
    num_drafted: dict[int, int] = field(default_factory=dict)
    timings: Timings = NO_TIME

    @property
    def has_rest(self) -> bool:
        """Whether there is more than tokens and timings."""
        return bool(
            self.errors or self.late_slots or self.top_tokens or self.prompt_logprobs or self.num_drafted
        )

    @property
    def sampled_slots(self) -> list[int]:
        """The slots of `sampled`."""
        found: list[int] = self.sampled.slots.tolist()
        return found

    @property
    def sampled_ids(self) -> list[int]:
        """The ids of `sampled`."""
        found: list[int] = self.sampled.ids.tolist()
        return found

    @property
    def sampled_logprobs(self) -> list[float]:
        """The log probabilities of `sampled`."""
        found: list[float] = self.sampled.logprobs.tolist()
        return found
