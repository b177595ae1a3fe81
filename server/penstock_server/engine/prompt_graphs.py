"""Steps with parts of prompts, captured for numbers of tokens: decodes beside them, or drafts, whatever the spans are.

Op by op such a step costs the host more than the device, as long as its tokens are few: some ten launches a layer. Its
graph has rows for as many tokens as its size, and spans for as many sequences as there may be. Which of them are
decodes, which are prompts, and how long each is, its kernels read on the device. Rows behind the last span are those of
the spare row: nobody reads their result, and what they write goes to the spare block.

On CUDA a graph is captured for every size before the first step. On a CPU a step is recorded when its size first comes.
A step that fits into no size runs op by op, and so does one with adapters.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from penstock_kernels import DecodeSpans, find_spans
from penstock_kernels.base.attention_spans import MAX_DECODE_LEN

from penstock_server.architectures.spec import ModelSpec
from penstock_server.engine.decode_graphs import decode_input
from penstock_server.engine.graph_pool import GraphPool, Replay
from penstock_server.engine.plan import Span
from penstock_server.engine.recordings import Recordings, can_record
from penstock_server.engine.slots import Slots
from penstock_server.engine.step import PaddedSpans
from penstock_server.network.forward_input import ForwardInput, ReadRows, TapShape
from penstock_server.network.kv_cache import KVCache
from penstock_server.network.model import Model

# Spans longer than a decode with drafts. Each may add a tile of attention that is not full, in every layer.
_MOST_PROMPTS = 16


class GraphShape(NamedTuple):
    """The numbers of tokens and spans that a graph has room for."""

    num_tokens: int
    num_spans: int
    # Whether it is told which rows are read.
    leaves_rows: bool


class PromptGraphs:
    """One graph per number of tokens."""

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        slots: Slots,
        sizes: Sequence[int],
        pool: GraphPool,
        tapped: TapShape | None = None,
    ) -> None:
        """`tapped`: hidden states that somebody may read behind a step."""
        assert isinstance(model.facts, ModelSpec), "only our decoder can be captured"
        self.model = model
        self.cache = cache
        self.slots = slots
        self.sizes = sorted(set(sizes))
        self._pool = pool
        largest, device = self.sizes[-1], slots.device
        # Slots, starts and lengths; int64 as they are sent.
        self._inputs = torch.zeros(3, self._spans_of(largest), dtype=torch.int64, device=device)
        self._inputs[0].fill_(slots.rows.spare)
        # One for all sizes: a graph then keeps no memory of its own, and the next one may use the same.
        self._hidden = torch.zeros(largest, model.facts.hidden_size, dtype=model.dtype, device=device)
        self._taps = None if tapped is None else tapped.taps(largest, model.dtype, device)
        # Longer spans are prompts to attention. Where spans must not depend on each other, those of 2 to 8 tokens are
        # computed by their number of tokens, each with a map of its own: they run op by op.
        self._decode_len = 1 if slots.batch_invariant else MAX_DECODE_LEN
        # Number, slot and position of each row that is read, where not all are.
        self._read = torch.zeros(3, largest, dtype=torch.int64, device=device)
        self._starts = torch.arange(largest + 1, dtype=torch.int32, device=device)
        self._replays: dict[int, Replay] = {}
        self._recordings = Recordings("steps with prompts") if can_record(device) else None

    @torch.inference_mode()
    def capture(self) -> None:
        """Before the first step, on CUDA."""
        if self.slots.device.type == "cuda":
            for size in reversed(self.sizes):
                self._replays[size] = self._pool.capture(partial(self._compute, size))

    def rehearse(self) -> None:
        """Compute a step of each size, without a graph."""
        for size in self.sizes:
            self._compute(size)

    def close(self) -> None:
        """Destroy the captured graphs."""
        self._replays.clear()
        if self._recordings is not None:
            self._recordings.clear()
        self._pool.close()

    def shape_for(self, spans: Sequence[Span]) -> GraphShape | None:
        """The smallest graph for a step over these spans, if there is one."""
        size = self._size_of(sum(span.length for span in spans))
        if size is None or self.slots.use_adapters(list(spans)):
            return None
        if self._recordings is not None and not self._recordings.is_possible:
            # To pad such a step would only cost time.
            return None
        longer = [span.length for span in spans if span.length > self._decode_len]
        if len(longer) > _MOST_PROMPTS or min(longer, default=MAX_DECODE_LEN + 1) <= MAX_DECODE_LEN:
            return None
        return GraphShape(size, self._spans_of(size), leaves_rows=self._recordings is not None)

    def run(self, padded: PaddedSpans, is_tapped: bool = False) -> torch.Tensor:
        """The hidden states of the rows that are read, or of all; valid until the next run.

        `is_tapped`: whether somebody reads `states` behind this run. What was captured always leaves them.
        """
        numbers, size, read = padded
        self._inputs[:, : numbers.shape[1]].copy_(numbers)
        num_read = 0 if read is None else self._write_read(read)
        compute = self._replays.get(size) or partial(self._compute, size, num_read, is_tapped)
        if self._recordings is None:
            compute()
        else:
            self._recordings.run((size, num_read, is_tapped), compute)
        return self._hidden[: size if read is None else read.shape[1]]

    def states(self, num_tokens: int) -> torch.Tensor | None:
        """The hidden states of the last run's tokens, if they were to be read; valid until the next one."""
        return None if self._taps is None else self._taps.states[:, :num_tokens]

    def _size_of(self, num_tokens: int) -> int | None:
        if num_tokens > self.sizes[-1]:
            return None
        return self.sizes[bisect_left(self.sizes, num_tokens)]

    def _spans_of(self, size: int) -> int:
        """Every span has a token, and a slot has one span."""
        return min(size, self.slots.limits.num_slots)

    def _write_read(self, read: torch.Tensor) -> int:
        """Returns how many rows are read with those that fill their number up: positions of the spare row.

        Each number is a recording of its own, and a row more is one of the last layer only.
        """
        count = read.shape[1]
        filled = 1 << (count - 1).bit_length() if count <= 8 else -(-count // 8) * 8
        num_read = min(filled, self._read.shape[1])
        self._read[:, :count].copy_(read)
        self._read[1, count:num_read] = self.slots.rows.spare
        self._read[::2, count:num_read] = 0
        return num_read

    def _compute(self, size: int, num_read: int = 0, is_tapped: bool = True) -> None:
        """`num_read`: 0: all rows are read."""
        inputs = self._forward_input(size, is_tapped)
        if num_read:
            rows, slots, positions = self._read[:, :num_read].unbind()
            of_rows = decode_input(self.slots, slots, positions, self._starts[: num_read + 1], longest=1)
            inputs = replace(inputs, read=ReadRows(rows, of_rows))
        hidden = self.model(inputs, self.cache)
        self._hidden[: len(hidden)].copy_(hidden)

    def _forward_input(self, size: int, is_tapped: bool) -> ForwardInput:
        limits, rows = self.slots.limits, self.slots.rows
        num_spans = self._spans_of(size)
        slots, starts, lens = self._inputs[:, :num_spans].unbind()
        rest = (rows.tokens, rows.block_table, limits.block_size, rows.spare)
        found = find_spans(slots, starts, lens, size, *rest)
        spans = DecodeSpans(
            query_starts=found.query_starts,
            context_lens=found.context_lens,
            block_tables=found.block_tables,
            block_size=limits.block_size,
            max_query_len=self._decode_len,
            max_context_len=limits.max_sequence_len,
            unbatched=self.slots.batch_invariant,
            num_prompts=min(_MOST_PROMPTS, num_spans),
        )
        taps = self._taps._replace(states=self._taps.states[:, :size]) if self._taps and is_tapped else None
        return ForwardInput(found.token_ids, found.positions, found.cache_positions, spans, slots, taps=taps)
