"""Plans: what a step is to do. Plain types, with no protobuf and no tensors."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np

from penstock_server.engine.sampling_params import SamplingParams

Numbers = np.ndarray[Any, np.dtype[np.int64]]
# Tokens drafted behind the last one of a slot, by slot: a chain, or a `TokenTree`.
Drafts = Mapping[int, tuple[int, ...]]


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
    # The state that the slot begins with; None: none, and position 0.
    snapshot: int | None = None
    # Tokens that are likely to be generated.
    predicted_ids: tuple[int, ...] = ()


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
    # Tokens that were drafted behind the last one of the slot; the last positions of the span are theirs.
    drafts: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        return self.start + self.length

    @property
    def known_end(self) -> int:
        """One past the last position whose token is not a draft."""
        return self.end - len(self.drafts)


class Appends(Sequence[Append]):
    """Further blocks for several slots as numbers: `counts[i]` of `blocks` for `slots[i]`."""

    def __init__(self, slots: Numbers, counts: Numbers, blocks: Numbers) -> None:
        self.slots = slots
        self.counts = counts
        self.blocks = blocks

    def __len__(self) -> int:
        return len(self.slots)

    @overload
    def __getitem__(self, index: int) -> Append: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Append]: ...

    def __getitem__(self, index: int | slice) -> Append | Sequence[Append]:
        return list(self)[index]

    def __iter__(self) -> Iterator[Append]:
        ends = self.counts.cumsum().tolist()
        for slot, count, end in zip(self.slots.tolist(), self.counts.tolist(), ends, strict=True):
            yield Append(slot, self.blocks[end - count : end].tolist())


class Spans(Sequence[Span]):
    """Spans as numbers, of which a `Span` is made when it is asked for: decodes never need one."""

    def __init__(self, numbers: Numbers) -> None:
        """[3, num_spans] of slots, starts and lengths."""
        self.numbers = numbers

    @classmethod
    def of(cls, spans: Sequence[Span]) -> "Spans":
        """Converts spans to numbers."""
        if isinstance(spans, Spans):
            return spans
        rows = [(span.slot, span.start, span.length) for span in spans]
        return cls(np.array(rows, dtype=np.int64).reshape(-1, 3).T)

    def of_slots(self, slots: Sequence[int]) -> "Spans":
        """The spans of these slots."""
        return Spans(self.numbers[:, np.isin(self.numbers[0], slots)])

    def without(self, slots: Sequence[int]) -> "Spans":
        """The spans of other slots."""
        return Spans(self.numbers[:, ~np.isin(self.numbers[0], slots)])

    def __len__(self) -> int:
        return len(self.numbers[0])

    @overload
    def __getitem__(self, index: int) -> Span: ...

    @overload
    def __getitem__(self, index: slice) -> "Spans": ...

    def __getitem__(self, index: int | slice) -> "Span | Spans":
        if isinstance(index, slice):
            return Spans(self.numbers[:, index])
        return Span(*self.numbers[:, index].tolist())

    def __iter__(self) -> Iterator[Span]:
        return (Span(*span) for span in self.numbers.T.tolist())


def with_drafts(spans: Iterable[Span], drafts: Drafts) -> list[Span]:
    """The spans, and behind each the tokens drafted for its slot; one with any is the slot's last token before them."""
    return [
        Span(span.slot, span.start, 1 + len(drafted), drafted)
        if (drafted := drafts.get(span.slot, ()))
        else span
        for span in spans
    ]


@dataclass(frozen=True, slots=True)
class Plan:
    """One step, as a delta. Applied in the order of the fields."""

    epoch: int
    step: int
    retired: list[int] = field(default_factory=list)
    admitted: list[Admit] = field(default_factory=list)
    appended: Sequence[Append] = ()
    copied_from: list[int] = field(default_factory=list)
    copied_to: list[int] = field(default_factory=list)
    spans: Sequence[Span] = ()
    # By slot: how many tokens may be drafted in its span, which is open: it begins where the slot stands.
    open_drafts: dict[int, int] = field(default_factory=dict)
    # By slot: where the state behind its span is kept.
    snapshots: dict[int, int] = field(default_factory=dict)

    @property
    def is_of_decodes(self) -> bool:
        """Whether each of its spans is one position, as open spans are."""
        return len(self.open_drafts) == len(self.spans) or self.num_decodes == len(self.spans)

    @property
    def is_closed(self) -> bool:
        """Whether it has decodes alone, none of which is open or begins a sequence: then many sequences generate, and
        nothing is drafted soon."""
        return not (self.open_drafts or self.admitted) and self.is_of_decodes

    @property
    def num_decodes(self) -> int:
        """How many of its spans are one position."""
        return int((Spans.of(self.spans).numbers[2] == 1).sum())
