"""Plans: what a step is to do. Plain types, with no protobuf and no tensors."""

from dataclasses import dataclass, field

from penstock_server.engine.sampling_params import SamplingParams


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
