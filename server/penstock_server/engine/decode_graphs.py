"""Decode steps of fixed sizes: captured once and replayed, so that the host launches a whole step by one call.

A step of fewer rows is padded by the spare row, whose context is empty: its result is never read, and
what it writes goes to the spare block. Everything that a step needs beyond slots and positions is made on the device,
from rows that plans have changed.

On CUDA a graph is captured for every size before the first step. On a CPU a step is recorded when its size first
occurs; a model whose code depends on computed values cannot be recorded and runs op by op. Steps in which a row uses an
adapter have graphs of their own, whichever adapters these are, so that other steps compute nothing for adapters.

A drafted token is a row, too: it is the next position of the slot of the row before. On CUDA such steps are those of
`prompt_graphs`. Where layers are in stages, such steps are computed op by op: one stage may have no graphs, and all
ranks compare how they went.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from penstock_kernels import AdapterRows, DecodeSpans, RecurrentSpans, find_decodes
from penstock_kernels.base.attention_spans import MAX_DECODE_LEN, MAX_TREE_LEN
from penstock_kernels.base.devices import runs_kernels
from penstock_kernels.native.recording import Arena, Calls, NotRecordable, Recording, record

from penstock_server.architectures.spec import ModelSpec
from penstock_server.engine.adapters import NO_ADAPTER
from penstock_server.engine.draft_states import NOWHERE
from penstock_server.engine.graph_pool import GraphPool, Replay
from penstock_server.engine.plan import Span
from penstock_server.engine.recordings import Ahead
from penstock_server.engine.slots import Slots
from penstock_server.engine.stages import room_for_hidden
from penstock_server.engine.step import TreeRows
from penstock_server.network.adapters import ROOM_IN_GRAPHS
from penstock_server.network.forward_input import ForwardInput, TapShape
from penstock_server.network.kv_cache import KVCache
from penstock_server.network.model import Model
from penstock_server.network.states import States

logger = logging.getLogger(__name__)


class Kind(NamedTuple):
    """The properties that distinguish one graph from another."""

    size: int
    # Whether rows use adapters.
    uses_adapters: bool = False
    # Whether states behind tokens are kept, because others are drafted behind these.
    keeps_states: bool = False
    # Whether drafted tokens are trees: rows then have places and positions.
    has_trees: bool = False
    # Whether hidden states are left for a drafter.
    is_tapped: bool = False


class DecodeGraphs:
    """One graph per kind."""

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        slots: Slots,
        sizes: Sequence[int],
        pool: GraphPool,
        tapped: TapShape | None = None,
        given_size: int = 0,
        with_adapters: bool = False,
    ) -> None:
        """`tapped`: hidden states that somebody may read behind a step. `given_size`: of those that the model takes,
        each with the token behind its position; 0: none. `with_adapters`: slots may use some.
        """
        self.model = model
        self.cache = cache
        self.slots = slots
        self.sizes = sorted(set(sizes))
        # Slots, positions and adapters; int64 as they are sent.
        self._inputs = torch.zeros(3, self.sizes[-1], dtype=torch.int64, device=slots.device)
        self._inputs[0].fill_(slots.rows.spare)
        self._inputs[2].fill_(NO_ADAPTER)
        # Rows in which states behind tokens are kept.
        self._kept = torch.full_like(self._inputs[0], NOWHERE)
        # Positions, and which places each row sees, where drafted tokens are trees.
        self._positions = torch.zeros_like(self._inputs[0])
        self._seen = torch.full_like(self._positions, -1, dtype=torch.int32)
        self._query_starts = torch.arange(self.sizes[-1] + 1, dtype=torch.int32, device=slots.device)
        # One for all sizes: a graph then keeps no memory of its own, and the next one may use the same.
        num_logits = model.facts.vocab_size if model.stage.is_last else 0
        self._logits = torch.zeros(self.sizes[-1], num_logits, device=slots.device)
        # The hidden states from the stage before and those for the next stage: kept between replays, as not every
        # stage has graphs.
        self._received = (
            None if model.stage.is_first else room_for_hidden(model, self.sizes[-1], slots.device)
        )
        self._hidden = None if model.stage.is_last else room_for_hidden(model, self.sizes[-1], slots.device)
        self._taps = None if tapped is None else tapped.taps(self.sizes[-1], model.dtype, slots.device)
        given = (self.sizes[-1], given_size)
        self._given = torch.zeros(given, dtype=model.dtype, device=slots.device) if given_size else None
        self._replays: dict[Kind, Replay] = {}
        # On a CPU, where it could be recorded.
        self._recordings: dict[Kind, Recording] = {}
        self._records_adapters = with_adapters
        # Whether rows of one slot are joined to spans, as drafts are.
        self.joins = slots.device.type != "cuda" and model.stage.count == 1
        # Whether these may be trees. Attention of a tree is equal to that of its tokens one after the other but for the
        # order of a sum, so that it does not go with `batch_invariant`.
        facts = model.facts
        sees_trees = isinstance(facts, ModelSpec) and facts.sees_trees
        self.takes_trees = self.joins and sees_trees and not slots.batch_invariant
        self._pool = pool
        # A recording does not see what Triton's interpreter computes, which only tests use.
        self._is_interpreted = slots.device.type != "cuda" and runs_kernels(slots.device)
        self._arena = Arena()

    @torch.inference_mode()
    def capture(self) -> None:
        """Before the first step, on CUDA."""
        if self.slots.device.type != "cuda":
            return
        for kind in self._kinds():
            self._replays[kind] = self._pool.capture(partial(self._compute, kind))

    def rehearse(self) -> None:
        """Compute a step of each kind, without a graph."""
        for kind in self._kinds():
            self._compute(kind)

    def _kinds(self) -> Iterator[Kind]:
        """The kinds that may occur on CUDA; those that take most memory first."""
        for size in reversed(self.sizes):
            for uses in (True, False) if self._records_adapters else (False,):
                yield Kind(size, uses, is_tapped=self._leaves_states(is_tapped=True))

    def close(self) -> None:
        """Destroy the captured graphs."""
        self._replays.clear()
        self._recordings.clear()
        self._pool.close()

    def size_for(self, spans: Sequence[Span], longest: int = 1) -> int | None:
        """The size of the graph for a step over these spans, if there is one.

        `longest`: positions of a span, but for drafts, whose hidden states are worth a row each.
        """
        num_rows = sum(span.length for span in spans)
        if num_rows > len(spans) and not self.joins:
            return None
        known = (span.length - len(span.drafts) for span in spans)
        if max(known) > longest or any(map(self.slots.reads_prompt, spans)):
            return None
        if self.slots.use_adapters(spans) and not (
            self._records_adapters and self.slots.adapters.are_recordable
        ):
            return None
        return self.size_of(num_rows)

    def size_of(self, num_rows: int) -> int | None:
        """The size of the graph for a step of so many rows, if there is one."""
        if not self.sizes or num_rows > self.sizes[-1]:
            return None
        return self.sizes[bisect_left(self.sizes, num_rows)]

    def run(
        self,
        decode: torch.Tensor,
        given: torch.Tensor | None = None,
        kept: torch.Tensor | None = None,
        received: torch.Tensor | None = None,
        tree: TreeRows | None = None,
        is_tapped: bool = False,
    ) -> torch.Tensor:
        """Logits [num_rows, vocab_size] float32, valid until the next run. decode, kept and tree: those of `Step`.

        `given`: hidden states of the first rows, where the model takes some; `received`: from the stage before.
        `is_tapped`: whether somebody reads `states` behind this run.
        """
        if self._received is not None and received is not None:
            self._received[: len(received)].copy_(received)
        if kept is not None:
            self._kept.fill_(NOWHERE)[: len(kept)].copy_(kept)
        if self._given is not None and given is not None:
            self._given[: len(given)].copy_(given)
        if tree is not None:
            self._positions[: len(tree.positions)].copy_(tree.positions)
            self._seen[: len(tree.seen)].copy_(tree.seen)
        num_inputs, size = decode.shape
        self._inputs[:num_inputs, :size].copy_(decode)
        uses_adapters, leaves_states = num_inputs == len(self._inputs), self._leaves_states(is_tapped)
        kind = Kind(size, uses_adapters, kept is not None, tree is not None, leaves_states)
        if kind in self._replays:
            self._replays[kind]()
        else:
            self._replays[kind] = self._record(kind)
        return self._logits[:size]

    def ahead(self, size: int, has_trees: bool) -> Iterator[Ahead]:
        """Steps of so many rows, with drafts and without, each of which is recorded where it is run. `has_trees`:
        whether drafts may be trees."""
        rows = torch.zeros(2, size, dtype=torch.int64)
        rows[0] = self.slots.rows.spare
        run = partial(self.run, rows, is_tapped=True)
        yield run
        if isinstance(self.cache.states, States):
            yield partial(run, kept=torch.full_like(rows[0], NOWHERE))
        if has_trees and self.takes_trees:
            seen = torch.full_like(rows[0], -1, dtype=torch.int32)
            yield partial(run, tree=TreeRows(torch.zeros_like(rows[0]), seen))

    def hidden(self, num_rows: int) -> torch.Tensor:
        """The hidden states of the first rows of the last run, for the next stage."""
        assert self._hidden is not None, "the last stage has logits"
        return self._hidden[:num_rows]

    def states(self, num_rows: int) -> torch.Tensor | None:
        """The hidden states of the last run's first rows, if they were to be read; valid until the next one."""
        return None if self._taps is None else self._taps.states[:, :num_rows]

    def recorded(self, size: int, is_tapped: bool) -> tuple[Calls, torch.Tensor, torch.Tensor] | None:
        """The calls that compute a step of this size without adapters, trees or stages; the memory of its slots and
        positions, [2, size]; and its logits, [size, vocab_size]. None unless it was recorded and is only ops in C.
        `is_tapped`: as in `run`."""
        recording = self._recordings.get(Kind(size, is_tapped=self._leaves_states(is_tapped)))
        calls = None if recording is None else recording.only_calls()
        return None if calls is None else (calls, self._inputs[:2, :size], self._logits[:size])

    def _leaves_states(self, is_tapped: bool) -> bool:
        """Whether a run leaves hidden states. Those that nobody reads are copied only on CUDA, where a second graph of
        each size would take more memory and time than the copies."""
        return self._taps is not None and (is_tapped or self.slots.device.type == "cuda")

    def _record(self, kind: Kind) -> Replay:
        """Compute a step and record it. All recordings share the memory of intermediate results."""
        compute = partial(self._compute, kind)
        if not self._is_interpreted:
            undo = self._undo(kind.size)
            try:
                self._recordings[kind] = record(compute, self._arena)
                return self._recordings[kind].replay
            except NotRecordable as reason:
                # Without recordings, padding a step to a fixed size would only cost time.
                if kind.uses_adapters:
                    logger.info("decode steps with adapters are not recorded: %s", reason)
                    self._records_adapters = False
                else:
                    logger.info("decode steps are not recorded: %s", reason)
                    self.sizes = []
                undo()
        compute()
        return compute

    def _undo(self, size: int) -> Callable[[], None]:
        """Returns a function that undoes a step of this size, or a part of it: it puts the states back."""
        states, slots = self.cache.states, self._inputs[0, :size]
        if not isinstance(states, States):
            return _nothing
        return partial(states.put_back, slots, states.saved(slots))

    def _compute(self, kind: Kind) -> None:
        inputs = self._forward_input(kind)
        hidden = self.model(inputs, self.cache)
        if self._hidden is None:
            self._logits[: kind.size].copy_(self.model.logits(hidden, inputs.adapters))
        else:
            self._hidden[: kind.size].copy_(hidden)

    def _forward_input(self, kind: Kind) -> ForwardInput:
        size, uses_adapters, keeps_states, has_trees, is_tapped = kind
        slots, positions = self._inputs[0, :size], self._inputs[1, :size]
        adapters = AdapterRows(self._inputs[2, :size], ROOM_IN_GRAPHS) if uses_adapters else None
        taps = self._taps._replace(states=self._taps.states[:, :size]) if self._taps and is_tapped else None
        given = None if self._given is None else self._given[:size]
        tree = TreeRows(self._positions[:size], self._seen[:size]) if has_trees else None
        longest = MAX_DECODE_LEN if self.joins else 1
        starts = self._query_starts[: size + 1]
        found = decode_input(self.slots, slots, positions, starts, longest, given, tree)
        recurrent = None
        if keeps_states:
            recurrent = RecurrentSpans(slots, positions == 0, (1,) * size, self._kept[:size])
        received = None if self._received is None else self._received[:size]
        return replace(found, adapters=adapters, taps=taps, recurrent=recurrent, received=received)


def decode_input(
    slots: Slots,
    of: torch.Tensor,
    positions: torch.Tensor,
    query_starts: torch.Tensor,
    longest: int,
    given: torch.Tensor | None = None,
    tree: TreeRows | None = None,
) -> ForwardInput:
    """The model's input for one position of each of these slots, the last of which may be the spare row.

    Made on the device, lengths included: `paged_attention` reads them there. `query_starts`: as many numbers as there
    are rows, and one more. `longest`: so many rows may be a span. `given`: as in `ForwardInput`; the model then takes
    the token behind each position. `tree`: where drafted tokens are trees; `positions` are places then.
    """
    limits, rows = slots.limits, slots.rows
    tokens = rows.tokens if given is None else rows.tokens[:, 1:]
    longest = longest if tree is None else MAX_TREE_LEN
    found = find_decodes(of, positions, tokens, rows.block_table, limits.block_size, rows.spare, longest)
    spans = DecodeSpans(
        query_starts=query_starts if found.query_starts is None else found.query_starts,
        context_lens=found.context_lens,
        block_tables=found.block_tables,
        block_size=limits.block_size,
        max_query_len=longest,
        max_context_len=limits.max_sequence_len,
        unbatched=slots.batch_invariant,
        tree=None if tree is None else tree.seen,
    )
    depths = positions if tree is None else tree.positions
    return ForwardInput(found.token_ids, depths, found.cache_positions, spans, of, given=given)


def _nothing() -> None:
    """Keys and values are written again."""
