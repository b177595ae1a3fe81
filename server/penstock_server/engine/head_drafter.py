"""Drafts by a head that reads hidden states of the model and has keys and values of its own: an EAGLE head, or the
layer of a checkpoint for multi-token prediction.

For a position, the head reads the model's hidden state there and the next token, and guesses the token after that one.
For the tokens that follow, it reads its own hidden state instead of the model's. Where it did not get the state of a
position, because another sequence computed it or nothing was to be drafted, its keys and values are zero: its guesses
are then somewhat worse, and the tokens that are generated are the same.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain
from operator import or_
from typing import NamedTuple

import torch

from penstock_server.architectures.spec import ModelSpec
from penstock_server.engine.decode_graphs import DecodeGraphs
from penstock_server.engine.draft_plane import DraftPlane
from penstock_server.engine.graphed_drafter import GraphedDrafter
from penstock_server.engine.guessed import agreed, fitted, handed_out
from penstock_server.engine.guided import Guided
from penstock_server.engine.kept_states import KeptStates, Run
from penstock_server.engine.plan import Drafts, Plan, Span
from penstock_server.engine.recorded_at_once import RecordedTreesAtOnce
from penstock_server.engine.recorded_passes import RecordedPasses
from penstock_server.engine.recorded_trees import RecordedTrees
from penstock_server.engine.recordings import Ahead, can_record
from penstock_server.engine.sampling import ADJUSTING
from penstock_server.engine.slots import Slots
from penstock_server.engine.staging import Staging
from penstock_server.engine.step import Step
from penstock_server.engine.step_pact import StepPact
from penstock_server.engine.told_pass import ToldPass, Wanted
from penstock_server.network.distributed import Group
from penstock_server.network.eagle import EagleHead
from penstock_server.network.forward_input import TapShape
from penstock_server.network.kv_cache import KVCache
from penstock_server.network.mtp import MtpHead
from penstock_server.network.upload import to_device

logger = logging.getLogger(__name__)

# The most positions of a slot that the pass computes which drafts its first token. If there are more, all but the last
# one are computed before. On CUDA it is one, because a graph has one position of each slot. A recorded pass takes more.
LONGEST_FIRST = 24
# The bytes of states that it may keep while nothing is drafted. It computes no prompt whose sequence ends before there
# are so many.
_MOST_KEPT = 1 << 26


_GuessBehind = Callable[[Mapping[int, Run], Mapping[int, int]], Drafts]


class _Guess(NamedTuple):
    """The result of a pass over some slots: tokens, and the states that the next pass reads."""

    ids: torch.Tensor
    given: torch.Tensor


class HeadDrafter(GraphedDrafter):
    """The head over its plane of the cache."""

    def __init__(
        self,
        head: EagleHead | MtpHead,
        cache: KVCache,
        slots: Slots,
        group: Group,
        graphs: DecodeGraphs | None,
        branches: int = 1,
    ) -> None:
        """`branches`: how many guesses there are for a token. With several, drafts are trees where they may be."""
        self.head = head
        self.cache = cache
        super().__init__(graphs)
        self.plane = DraftPlane(slots.limits)
        self._slots = slots
        self._group = group
        self._staging = Staging(slots, ahead=1)
        self._guided = Guided(slots, group)
        self._pact = StepPact(group, slots.device, _report)
        records = can_record(slots.device) and head.capturable
        self._recorded = self._recording(slots) if records else None
        unrecorded = 1 if slots.device.type == "cuda" else LONGEST_FIRST
        self._longest = unrecorded if self._recorded is None else self._recorded.most_of_slot
        sees_trees = isinstance(head.facts, ModelSpec) and head.facts.sees_trees
        branching = records and branches > 1 and sees_trees
        self._trees = self._tree_recording(slots, group, branches) if branching else None
        self._kept = KeptStates()
        self._plan: Plan | None = None

    @property
    def taps(self) -> TapShape | None:
        return self.head.reads

    @property
    def reads_step(self) -> bool:
        return self._plan is not None and not self._plan.is_closed

    @property
    def is_behind(self) -> bool:
        return self._kept.num_bytes > _MOST_KEPT

    @property
    def catches_up(self) -> bool:
        return True

    def follow(self, plan: Plan) -> None:
        for slot in plan.retired:
            self._kept.forget(slot)
        self.plane.follow(plan, self._slots.is_valid)
        self._plan = plan

    def read(self, spans: Sequence[Span], states: torch.Tensor) -> None:
        # A copy, position by position. The head computes with it later: in most steps nothing is drafted.
        begin = 0
        for span in spans:
            end = begin + span.length
            self._kept.add(span.slot, Run(span.start, torch.cat(states[:, begin:end].unbind(), dim=1)))
            begin = end

    def keep(self, slot: int, path: Sequence[int]) -> None:
        self._kept.keep(slot, path)

    def draft(self, spans: Sequence[Span], wanted: Mapping[int, int]) -> Drafts:
        return self._drafted(wanted, self._guess)

    def draft_trees(self, spans: Sequence[Span], wanted: Mapping[int, int]) -> Drafts:
        return self.draft(spans, wanted) if self._trees is None else self._drafted(wanted, self._guess_trees)

    def _drafted(self, wanted: Mapping[int, int], guess: _GuessBehind) -> Drafts:
        due = [slot for slot in self._kept.slots() if slot in wanted or self._is_due(slot)]
        runs = {slot: run for slot in due if (run := self._known(slot)) is not None}
        numbers = {
            slot: number for slot, number in wanted.items() if number > 0 and self._can_guess(slot, runs)
        }
        longest = self._longest_of(len(runs))
        long = {slot: run for slot, run in runs.items() if len(run.states) > longest}
        # The pass that drafts the first token computes the last position, too.
        leading = {slot: run.before(run.end - (slot in numbers)) for slot, run in long.items()}
        for part in self._parts(leading):
            self._compute(part)
        firsts = {
            slot: runs[slot].behind(leading[slot].end) if slot in leading else runs[slot] for slot in numbers
        }
        return guess(firsts, numbers)

    @property
    def grows_trees(self) -> bool:
        return self._trees is not None

    def ahead(self, count: int, max_drafts: int) -> Iterator[Ahead]:
        recorded = (self._trees, self._recorded)
        return chain.from_iterable(it.ahead(count, max_drafts) for it in recorded if it is not None)

    def rehearse(self) -> None:
        super().rehearse()
        self.head.prepare(self.head.reads.rows(1, self.head.dtype, self._slots.device))

    def forget(self, blocks: Sequence[int]) -> None:
        self.plane.forget(blocks)

    def clear(self) -> None:
        self.plane.clear()
        self._kept.clear()

    def _is_due(self, slot: int) -> bool:
        """Whether the head computes the kept states of a slot at once: they are many, or the states behind them are
        missing and will not come."""
        state = self._slots.states.get(slot)
        has_gap = state is not None and self._kept.end(slot) + LONGEST_FIRST < state.length
        return has_gap or self._kept.count(slot) > self._longest

    def _longest_of(self, num_slots: int) -> int:
        """The most positions of each slot that the pass may compute for `num_slots` slots."""
        most = self._slots.limits.max_step_tokens
        if self._recorded is not None:
            most = min(most, self._recorded.most_rows // max(1, num_slots))
        return max(1, min(self._longest, most))

    def _parts(self, runs: Mapping[int, Run]) -> Iterator[dict[int, Run]]:
        """Split these positions into parts that fit into a step."""
        part, left = dict[int, Run](), self._slots.limits.max_step_tokens
        for slot, run in runs.items():
            rest = run
            while len(rest.states):
                part[slot] = rest.before(rest.start + left)
                rest, left = rest.behind(part[slot].end), left - len(part[slot].states)
                if left == 0:
                    yield part
                    part, left = {}, self._slots.limits.max_step_tokens
        if part:
            yield part

    def _known(self, slot: int) -> Run | None:
        """The states of a slot that are kept."""
        state = self._slots.states.get(slot)
        return None if state is None else self._kept.known(slot, state.length)

    def _prepared(self, runs: Iterable[Run]) -> torch.Tensor:
        """The states of these runs, one behind the other, as the head takes them."""
        return self.head.prepare(torch.cat([run.states for run in runs]))

    def _can_guess(self, slot: int, runs: Mapping[int, Run]) -> bool:
        """Whether that state of a slot is kept from which its last token was chosen."""
        return slot in runs and runs[slot].end == self._slots.states[slot].length - 1

    def _compute(self, runs: Mapping[int, Run]) -> None:
        """Compute keys and values of positions behind which nothing is drafted."""
        for slot, run in runs.items():
            self._begin(slot, run)
            self._kept.forget(slot)  # also where this fails: it would fail again
        step = self._staged([Span(slot, run.start, len(run.states)) for slot, run in runs.items()], None)
        self._hidden(step, self._prepared(runs.values()))
        for slot, run in runs.items():
            self.plane.fill(slot, run.end)

    def _begin(self, slot: int, run: Run) -> None:
        """Make the plane zero where it is not filled before a run: the states of these positions will not come."""
        self.plane.catch_up(slot)
        filled = self.plane.filled(slot)
        if filled < run.start:
            self.cache.blank(self._staging.places(slot, filled, run.start))
            self.plane.skip(slot, run.start)

    def _done(self, runs: Mapping[int, Run]) -> None:
        """The head has computed these runs."""
        for slot, run in runs.items():
            self.plane.fill(slot, run.end)
            self._kept.forget(slot)

    def _recording(self, slots: Slots) -> ToldPass:
        """The recorded calls of the head."""
        return RecordedPasses(self.head, self.cache, slots)

    def _tree_recording(
        self, slots: Slots, group: Group, branches: int
    ) -> RecordedTrees | RecordedTreesAtOnce:
        """The recording of a pass whose drafts are trees."""
        return RecordedTrees(self.head, self.cache, slots, group, branches)

    def _depth(self, number: int) -> int:
        """How deep a tree of `number` tokens may be."""
        return number

    def _wanted(self, slot: int, run: Run, number: int) -> Wanted:
        """The work of the head for a slot."""
        return Wanted(slot, self._slots.states[slot].length, run, number)

    def _guess(self, runs: Mapping[int, Run], numbers: Mapping[int, int]) -> Drafts:
        """`numbers` tokens for each slot, which are also written into its row."""
        if not runs:
            return {}
        for slot, run in runs.items():
            self._begin(slot, run)
        features = reduce(or_, (self._slots.states[slot].features for slot in runs))
        wanted = [self._wanted(slot, run, numbers[slot]) for slot, run in runs.items()]
        # A guess may depend on those before it.
        is_chain = self._guided.begin(numbers) or bool(features & ADJUSTING)
        if self._recorded is not None and not is_chain and self._recorded.takes(wanted):
            drafts = self._guess_recorded(self._recorded, wanted, bool(features))
        else:
            drafts = self._guess_freely(wanted, is_chain)
        self._done(runs)
        return drafts

    def _guess_trees(self, runs: Mapping[int, Run], numbers: Mapping[int, int]) -> Drafts:
        """Does what `_guess` does, with trees, where no slot asks for more than a draw."""
        if not runs:
            return {}
        depths = {slot: self._depth(number) for slot, number in numbers.items()}
        wanted = [self._wanted(slot, run, depths[slot]) for slot, run in runs.items()]
        if self._trees is None or not self._trees.takes(wanted):
            return self._guess(runs, depths)
        for slot, run in runs.items():
            self._begin(slot, run)
        self._poison(wanted)
        features = reduce(or_, (self._slots.states[slot].features for slot in runs))
        trees = self._trees.guess_trees(wanted, [numbers[slot] for slot in runs], bool(features))
        self._done(runs)
        return dict(zip(runs, trees, strict=True))

    def _guess_freely(self, wanted: Sequence[Wanted], is_chain: bool) -> Drafts:
        """Op by op or by graphs, whatever the slots ask for."""
        states, slots = self._slots.states, [each.slot for each in wanted]
        numbers = {each.slot: each.number for each in wanted}
        spans = [Span(each.slot, each.run.start, len(each.run.states)) for each in wanted]
        given, passes = self._prepared(each.run for each in wanted), []
        try:
            while slots:
                guess = self._pass(spans, given)
                passes.append((slots, guess.ids))
                going = (numbers[slot] > len(passes) and self._guided.goes_on(slot) for slot in slots)
                rows = [row for row, goes_on in enumerate(going) if goes_on]
                slots, given = self._going_on(slots, rows, guess.given)
                spans = [Span(slot, states[slot].length - 2, 1) for slot in slots]
        finally:
            for each in wanted:
                states[each.slot].length = each.length
        owners = [slot for slots, _ids in passes for slot in slots]
        return self._guided.cut(agreed(owners, [ids for _slots, ids in passes], self._group))

    def _guess_recorded(self, recorded: ToldPass, wanted: Sequence[Wanted], draws: bool) -> Drafts:
        """Where no slot asks for more than a draw."""
        self._poison(wanted)
        found = recorded.guess(wanted, draws)
        owners = [each.slot for each in wanted for _ in range(each.number)]
        return handed_out(owners, [token for tokens in found for token in tokens], self._group)

    def _poison(self, wanted: Sequence[Wanted]) -> None:
        """In tests: what no pass has written must not be read."""
        if self.cache.is_poisoned:
            spans = [Span(slot, run.start, len(run.states)) for slot, _length, run, _number in wanted]
            self.cache.poison(self._staging.unwritten(spans))

    def _going_on(
        self, slots: list[int], rows: list[int], given: torch.Tensor
    ) -> tuple[list[int], torch.Tensor]:
        """The slots in these rows, and the states that the next pass reads for them."""
        if len(rows) == len(slots):
            return slots, given
        index = to_device(rows, torch.int64, given.device)
        return [slots[row] for row in rows], given.index_select(0, index)

    def _pass(self, spans: list[Span], given: torch.Tensor) -> _Guess:
        """The token behind each span, which becomes the last one of its slot."""
        step = self._staged(spans, self.graphs.size_for(spans, self._longest) if self.graphs else None)
        hidden, logits = self._scored(step, given)
        ids = self._guided.choose([span.slot for span in spans], logits, step.sampling)
        for span in spans:
            self._slots.states[span.slot].length += 1
        return _Guess(ids, self.head.following(hidden))

    def _scored(self, step: Step, given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The head's output for the rows that get a token, and their logits over the model's vocabulary."""
        hidden, logits = self._computed(step, given)
        if len(hidden) > step.sampling.num_rows:
            rows = step.sampled_rows
            hidden, logits = hidden[rows], None if logits is None else logits[rows]
        logits = self.head.logits(hidden) if logits is None else logits
        return hidden, fitted(logits, self._slots.limits.vocab_size)

    def _staged(self, spans: list[Span], num_rows: int | None) -> Step:
        step = self._staging.stage(spans, num_rows)
        if self.cache.is_poisoned:
            self.cache.poison(self._staging.unwritten(spans))
        return step

    def _computed(self, step: Step, given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The head's output for each position, and logits if these were computed with it."""
        if step.decode is None:
            return self._hidden(step, given), None
        assert self.graphs is not None, "the graphs chose the size of this step"
        # Slots and positions: no adapter acts on the drafter.
        logits = self.graphs.run(step.decode[:2], given, is_tapped=True)[: step.num_tokens]
        hidden = self.graphs.states(step.num_tokens)
        assert hidden is not None, "it goes on with what it returns"
        return hidden[0], logits

    def _hidden(self, step: Step, given: torch.Tensor) -> torch.Tensor:
        assert step.forward is not None, "a step has exactly one of the two"
        inputs = replace(step.forward, adapters=None, given=given)
        if self._group.size == 1 or not step.has_prompts:
            return self.head(inputs, self.cache)  # type: ignore[no-any-return]
        return self._pact.run_pass(lambda: self.head(inputs, self.cache), inputs)


def _report(error: Exception) -> None:
    logger.error("nothing was drafted in a step: %s", error)
