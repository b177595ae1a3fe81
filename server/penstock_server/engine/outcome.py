"""Outcomes: what came of a plan. Plain types, with no protobuf and no tensors."""

from dataclasses import dataclass, field

from penstock_server.base.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class SlotError:
    """The failure of one slot; the other slots of the step are not affected."""

    slot: int
    code: ErrorCode
    message: str


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


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of a step went."""

    upload_us: int = 0
    forward_us: int = 0
    sample_us: int = 0
    download_us: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one plan."""

    epoch: int
    step: int
    sampled_slots: list[int] = field(default_factory=list)
    sampled_ids: list[int] = field(default_factory=list)
    sampled_logprobs: list[float] = field(default_factory=list)
    top_tokens: list[TopTokens] = field(default_factory=list)
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    errors: list[SlotError] = field(default_factory=list)
    # Slots that were to get a token and sat the step out, because the mask of their grammar was late.
    late_slots: list[int] = field(default_factory=list)
    # By slot: how many tokens were drafted for it.
    num_drafted: dict[int, int] = field(default_factory=dict)
    timings: Timings = field(default_factory=Timings)
