"""Arguments of attention beside its tensors: which queries see which positions, and how scores are computed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeVar

import torch

from penstock_kernels.base.upload import upload

Shared = TypeVar("Shared")

# A span of more tokens is a prefill, which has a kernel of its own with taller tiles.
MAX_DECODE_LEN = 8
# The most tokens of a tree: the int32 of each token has a bit for every one of them.
MAX_TREE_LEN = 32

# The most numbers of a latent for which the kernels of a GPU have tiles.
MAX_KERNEL_RANK = 512
# The most numbers of an index key for which the kernels of a GPU have tiles.
MAX_KERNEL_INDEX_DIM = 256


class Reach(NamedTuple):
    """Which of the positions up to its own a query sees; all, where both are None."""

    window: int | None = None
    chunk: int | None = None

    def first(self, position: int) -> int:
        """The first position that the query at `position` sees."""
        if self.chunk is not None:
            return position // self.chunk * self.chunk
        return 0 if self.window is None else max(position + 1 - self.window, 0)


class Scoring(NamedTuple):
    """How scores are computed from queries and keys.

    `window`: a query sees itself and the window - 1 positions before. `soft_cap`: scores become
    `soft_cap * tanh(score / soft_cap)`. `sinks`: [num_heads] float32, one more score per head, which has a weight in
    the softmax and no value. A cache of float8_e4m3fn holds numbers divided by `key_scale` and `value_scale`.
    `slopes`: [num_heads] float32, what a score loses for each position between its query and its key (ALiBi). `chunk`:
    sequences are divided into so many positions each, and a query sees those of its own; without a window.
    """

    scale: float
    window: int | None = None
    soft_cap: float | None = None
    sinks: torch.Tensor | None = None
    key_scale: float = 1.0
    value_scale: float = 1.0
    slopes: torch.Tensor | None = None
    chunk: int | None = None

    @property
    def reach(self) -> Reach:
        """The positions that queries see."""
        return Reach(self.window, self.chunk)


@dataclass(frozen=True, slots=True, eq=False)
class AttentionSpans:
    """Which queries see which cache positions, for one step and all layers.

    Span i has `query_lens[i]` consecutive rows of the queries and sees the first `context_lens[i]` positions of its
    sequence; its own tokens are the last of them. `block_tables`: [num_spans, max_blocks] int32; entries past the
    span's context are never read. `unbatched`: every span is computed by itself, so that none depends on the others.
    `tree`: [num_tokens] int32 where drafted tokens are trees: bit i of a token's number says that it sees the position
    i before its own. Every token sees itself and all positions further before.
    """

    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    block_tables: torch.Tensor
    block_size: int
    unbatched: bool = False
    tree: torch.Tensor | None = None
    _shared: dict[Any, Any] = field(default_factory=dict)

    @property
    def query_starts(self) -> list[int]:
        """The first row of every span, and the end of the last."""
        return [0, *accumulate(self.query_lens)]

    @property
    def longest(self) -> int:
        """No query sees more positions."""
        return max(self.context_lens, default=0)

    def rows_of(self, members: Sequence[int]) -> list[int]:
        """The rows of these spans, span after span."""
        starts = self.query_starts
        return [row for span in members for row in range(starts[span], starts[span + 1])]

    def among(self, members: Sequence[int]) -> "AttentionSpans":
        """Only these spans, in this order; for the queries in `rows_of`."""
        tree, device = self.tree, self.block_tables.device
        chosen = upload(torch.tensor(members, dtype=torch.int64), device)
        return replace(
            self,
            query_lens=tuple(self.query_lens[span] for span in members),
            context_lens=tuple(self.context_lens[span] for span in members),
            block_tables=self.block_tables.index_select(0, chosen),
            tree=None if tree is None else tree[self.rows_of(members)],
            _shared={},
        )

    def shared(self: "AttentionSpans | DecodeSpans", key: Any, build: Callable[[], Shared]) -> Shared:
        """The result of `build`, which is called once per step: layers of the same window share their work map."""
        if key not in self._shared:
            self._shared[key] = build()
        shared: Shared = self._shared[key]
        return shared


@dataclass(frozen=True, slots=True, eq=False)
class DecodeSpans:
    """Spans whose lengths only the device knows, as a captured graph needs them: decodes, and few prompts beside them.

    query_starts: [num_spans + 1] int32, the first row of every span and the end of the last; context_lens: [num_spans]
    int32; block_tables: [num_spans, max_blocks] int32. A span of no tokens or no context has no row in the result;
    there may be rows behind the last span. `max_query_len` and `max_context_len` bound all steps that use these
    tensors; up to `num_prompts` spans may be longer than `max_query_len`. `unbatched`, `tree`: as in `AttentionSpans`.
    """

    query_starts: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    block_size: int
    max_query_len: int
    max_context_len: int
    unbatched: bool = False
    tree: torch.Tensor | None = None
    num_prompts: int = 0
    _shared: dict[Any, Any] = field(default_factory=dict)

    shared = AttentionSpans.shared

    @property
    def longest(self) -> int:
        """No query sees more positions."""
        return self.max_context_len

    def on_host(self) -> AttentionSpans:
        """These spans with their lengths on the host, which waits for the device."""
        starts = self.query_starts.tolist()
        return AttentionSpans(
            tuple(end - start for start, end in pairwise(starts)),
            tuple(self.context_lens.tolist()),
            self.block_tables,
            self.block_size,
            self.unbatched,
            self.tree,
        )


@dataclass(frozen=True, slots=True, eq=False)
class AttentionArguments:
    """The checked arguments of attention in one layer: tensors as in `paged_attention`."""

    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    spans: AttentionSpans | DecodeSpans
    scoring: Scoring

    @property
    def device(self) -> torch.device:
        """The device of all tensors."""
        return self.query.device

    @property
    def num_kv_heads(self) -> int:
        """Heads of the cache."""
        return self.key_cache.shape[2]

    @property
    def group(self) -> int:
        """Query heads of a key head."""
        return self.query.shape[1] // self.num_kv_heads

    def among(self, rows: torch.Tensor, spans: AttentionSpans) -> "AttentionArguments":
        """The arguments for some spans only; `rows`: their queries."""
        return replace(self, query=self.query[rows], spans=spans)


@dataclass(frozen=True, slots=True, eq=False)
class LatentArguments:
    """The checked arguments of attention over latents in one layer: tensors as in `latent_attention`."""

    query: torch.Tensor
    cache: torch.Tensor
    key_up: torch.Tensor
    value_up: torch.Tensor
    spans: AttentionSpans | DecodeSpans
    scale: float

    @property
    def device(self) -> torch.device:
        """The device of all tensors."""
        return self.query.device

    def among(self, rows: torch.Tensor, spans: AttentionSpans) -> "LatentArguments":
        """The arguments for some spans only; `rows`: their queries."""
        return replace(self, query=self.query[rows], spans=spans)


# Computes attention of one layer: [num_tokens, num_heads, head_dim], contiguous.
Attend = Callable[[AttentionArguments], torch.Tensor]
# Computes attention over latents of one layer: [num_tokens, num_heads, value_dim].
AttendLatents = Callable[[LatentArguments], torch.Tensor]
