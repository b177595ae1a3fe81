"""What attention is told beside its tensors: which queries see which positions, and how scores are made."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch

Shared = TypeVar("Shared")

# A span of more tokens is a prefill: its own kernel, with taller tiles.
MAX_DECODE_LEN = 8
# Tokens whose visibility a tree's number can hold.
MAX_TREE_LEN = 31


class Scoring(NamedTuple):
    """How scores are made, as `paged_attention` says. sinks: [num_heads] float32."""

    scale: float
    window: int | None = None
    soft_cap: float | None = None
    sinks: torch.Tensor | None = None
    key_scale: float = 1.0
    value_scale: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class AttentionSpans:
    """Which queries see which cache positions, for one step and all layers.

    Span i owns `query_lens[i]` consecutive rows of the queries and sees the first `context_lens[i]` positions of its
    sequence, its own tokens being the last of them. `block_tables`: [num_spans, max_blocks] int32; entries past the
    span's context are never read. `unbatched` computes every span by itself, so that none depends on its company.
    `tree`: [num_tokens] int32 for spans that are trees of drafted tokens: bit i of a token's number says that it sees
    its span's token i. Every token sees all of the context before its span.
    """

    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    block_tables: torch.Tensor
    block_size: int
    unbatched: bool = False
    tree: torch.Tensor | None = None
    _shared: dict[Any, Any] = field(default_factory=dict)

    def shared(self: "AttentionSpans | DecodeSpans", key: Any, build: Callable[[], Shared]) -> Shared:
        """What `build` makes, built once per step: layers of the same window share their work map."""
        if key not in self._shared:
            self._shared[key] = build()
        shared: Shared = self._shared[key]
        return shared


@dataclass(frozen=True, slots=True, eq=False)
class DecodeSpans:
    """Spans of at most MAX_DECODE_LEN tokens whose lengths only the device knows, as a captured graph needs them.

    query_starts: [num_spans + 1] int32, the first row of every span and the end of the last; context_lens: [num_spans]
    int32; block_tables: [num_spans, max_blocks] int32. A span of no tokens or no context owns no row of the result.
    `max_query_len` and `max_context_len` bound all steps that use these tensors. `unbatched` and `tree` as in
    `AttentionSpans`.
    """

    query_starts: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    block_size: int
    max_query_len: int
    max_context_len: int
    unbatched: bool = False
    tree: torch.Tensor | None = None
    _shared: dict[Any, Any] = field(default_factory=dict)

    shared = AttentionSpans.shared
