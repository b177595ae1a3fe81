"""Which states the spans of a step continue, and how their tokens are divided for work that is done side by side."""

from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeVar

import torch

from penstock_kernels.base.upload import upload

Shared = TypeVar("Shared")


class Singles(NamedTuple):
    """The spans of one token: their rows and slots, and whether each is the first of its sequence. All [num_spans]."""

    rows: torch.Tensor
    slots: torch.Tensor
    is_first: torch.Tensor


class Chunks(NamedTuple):
    """Longer spans in chunks of one size, the last of each padded; the longest span comes first.

    Turn i has the chunks `turns[i]` (begin, end): the chunk number i of every span that has so many. These are the
    first spans, so the states of the first `end - begin` spans belong to them.
    """

    slots: torch.Tensor  # [num_spans]
    is_first: torch.Tensor  # [num_spans]
    rows: torch.Tensor  # [num_chunks, size] int64: rows of tokens; 0 for padding
    is_token: torch.Tensor  # [num_chunks, size] bool
    places: torch.Tensor  # int64: those of the tokens among all of `rows`
    turns: tuple[tuple[int, int], ...]

    def of(self, part: torch.Tensor) -> torch.Tensor:
        """[num_tokens, heads, ...] to [num_chunks, heads, size, ...]; padding is 0, whatever the tokens are."""
        padding = ~self.is_token.view(*self.is_token.shape, *(1,) * (part.dim() - 1))
        return part[self.rows].masked_fill_(padding, 0).transpose(1, 2)

    def put(self, results: torch.Tensor, output: torch.Tensor) -> None:
        """Write [num_chunks, heads, size, ...] to the rows of their tokens."""
        found = results.transpose(1, 2).flatten(0, 1)
        output[self.rows.flatten()[self.places]] = found[self.places]


class LongSpans(NamedTuple):
    """The longer spans, the longest first, for kernels that find the tokens of a chunk by themselves.

    `bounds`: [num_spans, 4] int64: the number of the span, its first token, its end, and the number of its first chunk.
    Chunks are numbered through all of these spans.
    """

    bounds: torch.Tensor
    num_chunks: int


class Tail(NamedTuple):
    """Rows of a tensor in which every span has the rows that its state remembers before those of its tokens."""

    remembered: torch.Tensor  # [num_spans, length]
    tokens: torch.Tensor  # [num_tokens]
    # The rows that its state remembers after the step.
    last: torch.Tensor  # [num_spans, length]
    num_rows: int


class RecurrentSpans:
    """Which states the spans of one step continue, for all layers.

    Span i has `query_lens[i]` consecutive tokens, and its state is in row `slots[i]`. `is_first`: [num_spans] bool, on
    the device: the span begins its sequence, and whatever the row holds counts as zero. The same slot is there once,
    but for that of padding, whose state nobody reads.

    `kept`: [num_spans] int64, on the device: rows to which the state behind a span is copied; below 0: to none. Then
    spans of one slot that follow each other are parts of one sequence, in order.
    """

    def __init__(
        self,
        slots: torch.Tensor,
        is_first: torch.Tensor,
        query_lens: Sequence[int],
        kept: torch.Tensor | None = None,
    ) -> None:
        self.slots = slots
        self.is_first = is_first
        self.query_lens = tuple(query_lens)
        self.kept = kept
        # Whether every span has one token.
        self.are_single = all(length == 1 for length in self.query_lens)
        self._shared: dict[Hashable, object] = {}

    def starts(self) -> torch.Tensor:
        """[num_spans + 1] int64, on the device: the first token of each span, and the end of the last."""
        return self.shared("starts", lambda: self._upload(list(accumulate(self.query_lens, initial=0))))

    def singles(self) -> Singles | None:
        """The spans of one token, if there are any."""
        return self.shared("singles", self._find_singles)

    def chunks(self, size: int) -> Chunks | None:
        """The longer spans, if there are any."""
        return self.shared(("chunks", size), lambda: self._find_chunks(size))

    def long_spans(self, size: int) -> LongSpans | None:
        """The longer spans, if there are any, to be computed in chunks of `size`."""
        return self.shared(("long_spans", size), lambda: self._find_long_spans(size))

    def tail(self, length: int) -> Tail:
        """Where the tokens and the last `length` rows of every span are."""
        return self.shared(("tail", length), lambda: self._find_tail(length))

    def part(self, number: int) -> "RecurrentSpans":
        """Only the span with this number, whose state is not copied."""
        one = slice(number, number + 1)
        return RecurrentSpans(self.slots[one], self.is_first[one], self.query_lens[one])

    def shared(self, key: Hashable, find: Callable[[], Shared]) -> Shared:
        """The result of `find`, which is called once per step."""
        if key not in self._shared:
            self._shared[key] = find()
        found: Shared = self._shared[key]  # type: ignore[assignment]
        return found

    def _find_singles(self) -> Singles | None:
        if self.are_single:
            rows = torch.arange(len(self.query_lens), device=self.slots.device)
            return Singles(rows, self.slots, self.is_first)
        starts = list(accumulate(self.query_lens, initial=0))
        members = [span for span, length in enumerate(self.query_lens) if length == 1]
        if not members:
            return None
        chosen, rows = self._upload([members, [starts[span] for span in members]])
        return Singles(rows, self.slots[chosen], self.is_first[chosen])

    def _longest_first(self) -> list[int]:
        """The numbers of the spans of several tokens."""
        members = [span for span, length in enumerate(self.query_lens) if length > 1]
        return sorted(members, key=lambda span: -self.query_lens[span])

    def _find_long_spans(self, size: int) -> LongSpans | None:
        members = self._longest_first()
        if not members:
            return None
        starts = list(accumulate(self.query_lens, initial=0))
        counts = [-(-self.query_lens[span] // size) for span in members]
        firsts = accumulate(counts, initial=0)
        bounds = [
            (span, starts[span], starts[span + 1], first)
            for span, first in zip(members, firsts, strict=False)
        ]
        return LongSpans(self._upload(bounds), sum(counts))

    def _find_chunks(self, size: int) -> Chunks | None:
        starts = list(accumulate(self.query_lens, initial=0))
        members = self._longest_first()
        if not members:
            return None
        firsts: list[int] = []
        counts: list[int] = []
        turns: list[tuple[int, int]] = []
        for begin in range(0, self.query_lens[members[0]], size):
            left = [(starts[span] + begin, self.query_lens[span] - begin) for span in members]
            here = [(first, min(count, size)) for first, count in left if count > 0]
            turns.append((len(firsts), len(firsts) + len(here)))
            firsts += [first for first, _count in here]
            counts += [count for _first, count in here]
        tokens = self._upload(
            [chunk * size + place for chunk, count in enumerate(counts) for place in range(count)]
        )
        chunks = self._upload([firsts, counts])
        places = torch.arange(size, device=self.slots.device)
        is_token = places < chunks[1][:, None]
        rows = torch.where(is_token, chunks[0][:, None] + places, 0)
        chosen = self._upload(members)
        return Chunks(self.slots[chosen], self.is_first[chosen], rows, is_token, tokens, tuple(turns))

    def _find_tail(self, length: int) -> Tail:
        lens = self._upload(self.query_lens)
        num_tokens, num_spans = sum(self.query_lens), len(self.query_lens)
        places = torch.arange(length, device=self.slots.device)
        ends = lens.cumsum(0) + length * torch.arange(1, num_spans + 1, device=self.slots.device)
        of_span = torch.repeat_interleave(
            torch.arange(num_spans, device=self.slots.device), lens, output_size=num_tokens
        )
        tokens = torch.arange(num_tokens, device=self.slots.device) + (of_span + 1) * length
        remembered = (ends - lens - length)[:, None] + places
        return Tail(remembered, tokens, (ends - length)[:, None] + places, num_tokens + length * num_spans)

    def _upload(self, numbers: Sequence[int] | Sequence[Sequence[int]]) -> torch.Tensor:
        return upload(torch.tensor(numbers, dtype=torch.int64), self.slots.device)
