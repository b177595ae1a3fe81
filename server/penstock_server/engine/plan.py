"""What crosses the wire, in our own words: plans down, outcomes up. No protobuf and no tensors here."""

from dataclasses import dataclass, field
from enum import IntFlag

from penstock_server.base.errors import ErrorCode


class Feature(IntFlag):
    """What a slot's sampling needs beyond the most likely token; a batch pays only for what some row of it needs."""

    PENALTIES = 1
    BIAS = 2
    SUPPRESSED = 4
    DRAW = 8
    TOP_K = 16
    TOP_P = 32
    MIN_P = 64
    TYPICAL_P = 128
    WATERMARK = 256


# Dividing by less than this would overflow; the distribution is a point long before.
GREEDY_BELOW = 1e-5


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose the next token; see the message of the same name in proto/engine.proto."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int = 0
    logit_bias_ids: tuple[int, ...] = ()
    logit_bias_values: tuple[float, ...] = ()
    num_top_logprobs: int = 0
    prompt_logprobs: bool = False
    min_new_tokens: int = 0
    suppressed_ids: tuple[int, ...] = ()
    watermark_delta: float = 0.0
    watermark_gamma: float = 0.0

    def features(self) -> Feature:
        """Which of the sampler's stages this slot needs."""
        wanted = {
            Feature.PENALTIES: (self.repetition_penalty, self.frequency_penalty, self.presence_penalty)
            != (1, 0, 0),
            Feature.BIAS: bool(self.logit_bias_ids),
            Feature.WATERMARK: self.watermark_delta != 0,
            Feature.SUPPRESSED: self.min_new_tokens > 0 and bool(self.suppressed_ids),
        }
        if self.temperature >= GREEDY_BELOW:
            wanted |= {
                Feature.DRAW: True,
                Feature.TOP_K: self.top_k > 0,
                Feature.TOP_P: self.top_p < 1,
                Feature.MIN_P: self.min_p > 0,
                Feature.TYPICAL_P: self.typical_p < 1,
            }
        return Feature(sum(feature for feature, needed in wanted.items() if needed))


@dataclass(frozen=True, slots=True)
class Grammar:
    """A constraint on the output as text; `kind` is "json_schema", "regex" or "lark"."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Admit:
    """Gives a free slot to a sequence: all its tokens so far, the blocks it starts with, how to sample."""

    slot: int
    token_ids: list[int]
    prompt_len: int
    block_ids: list[int]
    sampling: SamplingParams
    grammar: Grammar | None = None
    adapter_id: str = ""


@dataclass(frozen=True, slots=True)
class Append:
    """Further blocks for a slot."""

    slot: int
    block_ids: list[int]


@dataclass(frozen=True, slots=True)
class Span:
    """Positions `start .. start + length` of a slot, to compute in this step."""

    slot: int
    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class Plan:
    """One step, as a delta. Applied in the order of the fields."""

    epoch: int
    step: int
    retired: list[int] = field(default_factory=list)
    admitted: list[Admit] = field(default_factory=list)
    appended: list[Append] = field(default_factory=list)
    copied_from: list[int] = field(default_factory=list)
    copied_to: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SlotError:
    """One slot's failure; the others of the step are unharmed."""

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
    """Log probabilities of the prompt tokens from `start` on, and the most likely tokens in the place of each."""

    slot: int
    start: int
    logprobs: list[float]
    # By position, most likely first; as many as the slot asked for.
    top_ids: list[list[int]]
    top_logprobs: list[list[float]]


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of a step went."""

    upload_us: int = 0
    forward_us: int = 0
    sample_us: int = 0
    download_us: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Answers one plan."""

    epoch: int
    step: int
    sampled_slots: list[int] = field(default_factory=list)
    sampled_ids: list[int] = field(default_factory=list)
    sampled_logprobs: list[float] = field(default_factory=list)
    top_tokens: list[TopTokens] = field(default_factory=list)
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    errors: list[SlotError] = field(default_factory=list)
    timings: Timings = field(default_factory=Timings)
