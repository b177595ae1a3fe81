"""Holds the model, the cache and the slots, and runs plans. Knows nothing of streams and threads.

`launch` starts a step; on a GPU it returns before the step is computed, and waits neither for it nor for the step
before. A step with grammars is launched as a whole when `PendingOutcome.proceed` says so, and only then may another be
launched. `PendingOutcome.resolve` waits for the outcome. On the CPU it is ready when `launch` returns; in a stage
before the last, when the last one has told what it found.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from penstock_kernels import AdapterRows

from penstock_server.base.errors import StepFailed
from penstock_server.engine.cache_ahead import CacheAhead
from penstock_server.engine.decode_graphs import DecodeGraphs
from penstock_server.engine.description import Description
from penstock_server.engine.drafted import Drafted
from penstock_server.engine.drafting import Drafter
from penstock_server.engine.grammar import GrammarMasks, PendingMasks
from penstock_server.engine.late_slots import still_late, without
from penstock_server.engine.outcome import SlotError
from penstock_server.engine.pending import Launched, PendingOutcome
from penstock_server.engine.plain_steps import PlainSteps
from penstock_server.engine.plan import Drafts, Plan, Span, Spans
from penstock_server.engine.prompt_graphs import PromptGraphs
from penstock_server.engine.prompt_scores import score_prompt
from penstock_server.engine.sampling import Sampled, Scored, sample, sample_decodes
from penstock_server.engine.slot_table import Decodes
from penstock_server.engine.slots import Slots
from penstock_server.engine.stage_steps import StageSteps
from penstock_server.engine.stages import (
    Heading,
    Place,
    Told,
    found_tensors,
    read_found,
    received,
    room_for_scored,
)
from penstock_server.engine.staging import Staging
from penstock_server.engine.step import PromptRows, Step
from penstock_server.engine.step_clock import StepClock
from penstock_server.engine.step_pact import StepFailures, StepPact, report
from penstock_server.network.distributed import Group
from penstock_server.network.forward_input import ForwardInput, Taps
from penstock_server.network.kv_cache import KVCache
from penstock_server.network.model import Model

_Draft = Callable[[Sequence[Span], Mapping[int, int]], Drafts]
# Longer than any step waits for masks: when the model has run, there is nothing else to wait for.
_LONGEST_WAIT_S = 1.0


class Engine:
    """One rank's engine. All of its methods are for the thread that loaded it."""

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        slots: Slots,
        group: Group,
        description: Description,
        graphs: DecodeGraphs | None = None,
        prompt_graphs: PromptGraphs | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        self.model = model
        self.cache = cache
        self.slots = slots
        self.group = group
        self.description = description
        self.graphs = graphs
        self.prompt_graphs = prompt_graphs
        self.staging = Staging(slots)
        self._ahead = CacheAhead(cache.fresh_pools, slots.limits)
        # The ranks that decide together with this one.
        self._part = model.stage.part or group
        self._pact = StepPact(self._part, slots.device, report, model.stage)
        self._failures = StepFailures(group, model.stage)
        self.drafter = drafter if drafter and slots.can_draft else Drafter()
        self._stages = StageSteps(model, self._part, slots.device, self.drafter.taps)
        is_whole = model.stage.count == 1 and not cache.is_poisoned
        self._plain = PlainSteps(graphs, slots, self._failures.of) if graphs and is_whole else None
        # The last step, if it has drafts of which the slots do not know yet whether they were right.
        self._drafting: PendingOutcome | None = None
        # The last step, whose tokens grammars get before drafts are made.
        self._before: PendingOutcome | None = None
        # Whether a step still runs when it is launched.
        self.runs_ahead = slots.device.type == "cuda"
        # The most steps that are launched and not resolved: one runs and one waits; or one in each stage, and one more.
        self.most_launched = 1 + model.stage.count if self._stages.is_told else 2

    def clear(self) -> None:
        """Drop all slots; the weights stay."""
        self._drafting = self._before = None
        self._stages.clear()
        self.slots.clear()
        self.drafter.clear()

    @torch.inference_mode()
    def write_blocks(self, blocks: list[int], data: torch.Tensor) -> None:
        """Take over blocks that the shard of another replica computed. Called between two steps."""
        self.cache.write_blocks(blocks, data)
        self.drafter.forget(blocks)

    def capture(self) -> None:
        """Capture all graphs, before the first step; those that take most memory first."""
        for graphs in self.all_graphs():
            graphs.capture()
        self.drafter.capture()

    def destroy_graphs(self) -> None:
        """Called when no more step will be computed."""
        for graphs in self.all_graphs():
            graphs.close()
        self.drafter.close()
        self._ahead.close()

    def close(self) -> None:
        """Leave the group. Graphs go first: the group cannot end while they hold its communicator."""
        self.destroy_graphs()
        self.group.leave()

    def all_graphs(self) -> list[DecodeGraphs | PromptGraphs]:
        """The graphs of this engine; those that take most memory first."""
        return [graphs for graphs in (self.prompt_graphs, self.graphs) if graphs is not None]

    def agree(self, epoch: int, step: int) -> bool:
        """Whether the other ranks are at this plan; see `StageSteps.agree`."""
        return self._stages.agree(Place(epoch, step))

    @torch.inference_mode()
    def launch(self, plan: Plan) -> Launched:
        """Apply a plan and start its step. Raises InvalidPlan for an error that belongs to no single slot."""
        heading = self._stages.heading(plan)
        self._stages.catch_up(plan, with_all=self.slots.draft_states is not None)
        self._settle()
        clock = StepClock(self.slots.device)
        clock.mark()
        errors = self.slots.apply(plan)
        self._ahead.follow(plan)
        self.cache.copy_blocks(plan.copied_from, plan.copied_to)
        self.drafter.follow(plan)
        late = still_late(self.slots, plan, errors, self._part) if heading is None else list(heading.late)
        plan = without(plan, late)
        wanted = {} if heading else self._worth(plan)
        # A step with a refused slot is looked at slot by slot.
        spans = None if errors or (heading and heading.is_by_slot) else self.slots.settled(plan)
        if self._plain is not None and spans is not None and not (wanted or late):
            if plan.open_drafts and self.drafter.takes_in:
                self._drafts(self.drafter.draft, spans, {})
            if computed := self._plain.launch(plan, spans, self.drafter):
                return computed
        decodes = None if spans is None else self._decodes(spans)
        place, is_tapped = Place(plan.epoch, plan.step), self.drafter.reads_step
        heading = heading or Heading(place, is_tapped=is_tapped, late=list(late))
        pending = PendingOutcome(plan, list(errors.values()), clock, heading, late_slots=late)
        if spans is None or decodes is None or not self._can_join(decodes, wanted):
            return self._launch_spans(pending, wanted, errors)
        return self._launch_decodes(pending, spans, decodes, wanted)

    def _worth(self, plan: Plan) -> Mapping[int, int]:
        """How many of the drafts that the plan allows are likely to pay, by slot."""
        if not plan.open_drafts:
            return {}
        return self.slots.affordable(self.drafter.worth(len(plan.spans), plan.open_drafts))

    def _decodes(self, spans: Spans, drafted: Drafted | None = None) -> Decodes | None:
        """All of these spans as arrays, if they are decodes and some of them need no more than arrays have."""
        num_rows = len(spans) if drafted is None else drafted.num_rows
        return self.slots.decodes(spans, self._graph_size(num_rows) or num_rows, drafted)

    def _can_join(self, decodes: Decodes, wanted: Mapping[int, int]) -> bool:
        """Whether these decodes with so many drafts are rows of a recorded step, none of which is sampled apart."""
        if not wanted:
            return True
        joins = self.graphs is not None and self.graphs.joins and not decodes.apart
        return joins and self._graph_size(decodes.num_decodes + sum(wanted.values())) is not None

    def _launch_decodes(
        self, pending: PendingOutcome, spans: Spans, decodes: Decodes, wanted: Mapping[int, int]
    ) -> Launched:
        """Start the step over these decodes, and over what is drafted behind them."""
        # Where nothing is to be drafted, the drafter may compute what it kept of the steps before.
        takes = pending.plan.open_drafts and (wanted or self.drafter.takes_in)
        may_branch = self.graphs is not None and self.graphs.takes_trees
        draft = self.drafter.draft_trees if may_branch else self.drafter.draft
        drafts = self._drafts(draft, spans, wanted) if takes else {}
        drafted = Drafted([span.slot for span in spans], drafts) if any(drafts.values()) else None
        at_once = self._plain if wanted and not pending.late_slots else None
        if at_once and (computed := at_once.launch(pending.plan, spans, self.drafter, drafted)):
            return computed
        if drafted is None:
            self._start(pending, spans, decodes)
            return pending
        extended, joined = self.slots.extend(spans, drafts), self._decodes(spans, drafted)
        assert joined is not None, "drafts are for plain slots that have room for them"
        pending.accept, pending.keep, self._drafting = self._accept, self._keep, pending
        self._start(pending, extended, joined)
        return pending

    def _graph_size(self, num_rows: int) -> int | None:
        return self.graphs.size_of(num_rows) if self.graphs else None

    def _launch_spans(
        self, pending: PendingOutcome, wanted: Mapping[int, int], errors: dict[int, SlotError]
    ) -> PendingOutcome:
        """Start a step of any spans; they are looked at slot by slot."""
        plan = pending.plan
        spans = self.slots.select(plan, errors)
        pending.late_slots += self.slots.void_slots(plan, errors)
        pending.errors = list(errors.values())
        if not spans:
            self._pass_by(pending)
            return pending
        spans = self._with_drafts(spans, wanted, pending)
        if any(span.drafts for span in spans):
            pending.accept = self._accept
            self._drafting = None if self._stages.is_told else pending
        self._start(pending, spans)
        return pending

    def _pass_by(self, pending: PendingOutcome) -> None:
        """Tell other stages that nothing is computed in this step."""
        self._stages.hand_on(replace(pending.heading, num_tokens=0))
        if self._stages.is_told:
            self._stages.expect(pending, ())
        else:
            self._stages.tell(Told(pending.heading.place))

    def _start(self, pending: PendingOutcome, spans: Sequence[Span], decodes: Decodes | None = None) -> None:
        """Start the step over these spans, which are given as arrays where they can be."""
        self._before = pending
        self._guard(spans, pending, lambda: self._run(self._stage(spans, decodes), spans, pending))
        self._proceed(pending)

    def _stage(self, spans: Sequence[Span], decodes: Decodes | None) -> Step:
        if decodes is not None:
            is_recorded = self._graph_size(decodes.num_decodes) is not None
            return self.staging.stage_decodes(decodes, is_recorded, () if decodes.drafted is None else spans)
        size = self.graphs.size_for(spans) if self.graphs else None
        shape = self.prompt_graphs.shape_for(spans) if self.prompt_graphs and size is None else None
        return self.staging.stage(spans, size, shape)

    def _proceed(self, pending: PendingOutcome) -> None:
        """Wait until the whole step is launched, where no other can be launched before."""
        while not (self.runs_ahead or pending.proceed(_LONGEST_WAIT_S)):
            pass

    def _with_drafts(
        self, spans: list[Span], worth: Mapping[int, int], pending: PendingOutcome
    ) -> list[Span]:
        """The spans, and tokens drafted behind those for which it may pay. The first stage drafts for all."""
        if not self.model.stage.is_first:
            self.slots.grammars.follow(pending.heading.drafts)
            return self.slots.extend(spans, pending.heading.drafts)
        legal = self._drafted(spans, worth)
        drafts = {slot: drafted for slot, drafted in legal.items() if drafted}
        pending.heading = replace(pending.heading, is_by_slot=True, drafts=drafts)
        return self.slots.extend(spans, legal)

    def _drafted(self, spans: list[Span], worth: Mapping[int, int]) -> Drafts:
        """The drafts behind these spans, as far as grammars allow them."""
        wanted = {span.slot: most for span in spans if (most := worth.get(span.slot, 0)) > 0}
        if wanted and self._before is not None:
            self._before.tell_when_done()
        grammars, gather = self.slots.grammars, self._part.gather_numbers
        draftable = grammars.draftable(wanted, gather)
        asked = {slot: wanted[slot] for slot in wanted if slot in draftable}
        drafts = self._drafts(self.drafter.draft, spans, asked)
        legal = grammars.legal(drafts, gather)
        for slot, drafted in drafts.items():
            if drafted and not legal[slot]:
                self.drafter.accept(slot, 0)
        return legal

    def _drafts(self, draft: _Draft, spans: Sequence[Span], wanted: Mapping[int, int]) -> Drafts:
        """The drafts of the drafter behind these spans; empty if it lacks the memory."""
        try:
            return draft(spans, wanted)
        except Exception as error:
            if self._failures.of(error) is None:
                raise
            return {}

    def _accept(self, slot: int, num_right: int) -> None:
        self.slots.accept(slot, num_right)
        self.drafter.accept(slot, num_right)

    @torch.inference_mode()
    def _keep(self, slot: int, path: Sequence[int], token_ids: Sequence[int]) -> None:
        """Move the tokens of a tree that count to the places of their positions."""
        start = self.slots.states[slot].length - 1
        self.slots.rows.write_tokens(slot, start, token_ids)
        moved = [(number, place) for place, number in enumerate(path) if number != place]
        if moved:
            sources, targets = zip(*moved, strict=True)
            places = self.staging.places(slot, start, start + 1 + sources[-1])
            self.cache.move(places[list(sources)], places[list(targets)])
        self.drafter.keep(slot, path)

    def _settle(self) -> None:
        """Wait for the last step if it had drafts: how many were right decides where its slots stand."""
        if self._drafting is not None:
            self._drafting.settle()
            self._drafting = None
            self.slots.settle()

    def _guard(self, spans: Sequence[Span], pending: PendingOutcome, launch: Callable[[], None]) -> None:
        """Launch a part of a step. An error that fails only requests becomes the error of their slots."""
        try:
            launch()
        except Exception as error:
            failure = self._failures.of(error)
            if failure is None:
                raise
            pending.fail(spans, failure)
            self._stages.tell(Told(pending.heading.place, failure.code))

    def _run(self, step: Step, spans: Sequence[Span], pending: PendingOutcome) -> None:
        """Launch the model, and what comes after it unless that waits for masks."""
        if self.cache.is_poisoned:
            self.cache.poison(self.staging.unwritten(spans))
        pending.clock.leave_out(self._stages.wait_for_hidden())
        pending.clock.mark()
        rows, num_rows = step.sampling.known_rows, step.sampling.num_rows
        masks = self.slots.grammars.pending_masks(rows, num_rows)
        step, taps = self._tapped(step) if pending.heading.is_tapped else (step, None)
        if self._stages.hands_on:
            heading = replace(pending.heading, num_tokens=step.num_tokens, compares=self._compares(step))
            self._stages.hand_on(heading)
        if self._stages.is_told:
            finish = partial(self._learn, spans, step, masks, pending)
            self._stages.expect(pending, step.sampling.slots_on_host(), finish)
        logits, pending.prompts = self._forward(step, taps)
        if taps is not None and not self._stages.is_told:
            pending.tapped = taps.states if self._stages.tells else None
            only_read = taps.of_read and step.leaves_rows
            self.drafter.read(self.staging.read_spans(spans) if only_read else spans, taps.states)
        self.slots.keep_snapshots(pending.plan, spans)
        pending.clock.mark()
        if self._stages.is_told:
            return
        pending.masks = masks
        launch = partial(self._finish, step, logits, pending)
        pending.rest = partial(self._guard, spans, pending, launch)
        pending.proceed()

    @torch.inference_mode()
    def _finish(self, step: Step, logits: torch.Tensor | None, pending: PendingOutcome) -> None:
        """Launch what comes after the model. The tensors left in `pending` are read when the device is done."""
        masks = sampled = None
        if logits is not None:
            if pending.masks is not None:
                masks = pending.masks.collect(self._part.gather_numbers)
            if self._compares(step):
                sampled = self._pact.run(partial(self._sample, logits, step, masks))
            else:
                sampled = self._sample(logits, step, masks)
        if self._stages.tells:
            self._tell(pending, sampled, masks)
        self._take_in(step, sampled, masks, pending)

    def _tell(self, pending: PendingOutcome, sampled: Sampled | None, masks: GrammarMasks | None) -> None:
        """Tell all stages what this one, the last, has found."""
        told = Told(pending.heading.place)
        if masks is not None:
            told.late, told.void, told.failed = list(masks.late), list(masks.void), list(masks.errors)
        self._stages.tell(told, found_tensors(pending.prompts, sampled), pending.tapped)

    @torch.inference_mode()
    def _learn(
        self,
        spans: Sequence[Span],
        step: Step,
        masks: PendingMasks | None,
        pending: PendingOutcome,
        told: Told,
        found: torch.Tensor,
        tapped: torch.Tensor | None,
    ) -> None:
        """The last stage has told what it found in a step that was computed here."""
        if pending.has_failed:
            return
        if told.reason is not None:
            pending.fail(spans, StepFailed(told.reason))
            return
        kept, has_masks = self.slots.rows.kept, masks is not None
        sampled = read_found(found, step.sampling, has_masks, pending.prompts, kept)
        if tapped is not None:
            self.drafter.read(spans, tapped)
        used = None if masks is None else masks.told(told.late, told.void, told.failed)
        self._take_in(step, sampled, used, pending)
        if pending.accept is not None:
            pending.settle()
            self.slots.settle()

    def _take_in(
        self, step: Step, sampled: Sampled | None, masks: GrammarMasks | None, pending: PendingOutcome
    ) -> None:
        """Give these tokens to the slots and to the outcome."""
        if sampled is not None:
            if masks is not None:
                pending.grammar_errors, pending.void_rows = masks.errors, masks.void
                pending.late_slots += [step.sampling.known_rows[number].slot for number in masks.late]
            pending.choices = self.slots.commit(step.sampling, sampled.token_ids, masks)
            pending.sampling, pending.sampled = step.sampling, sampled
        pending.clock.mark()
        pending.fetch()
        if not self.runs_ahead:
            pending.tell()

    def _forward(
        self, step: Step, taps: Taps | None
    ) -> tuple[torch.Tensor | None, list[tuple[PromptRows, Scored]]]:
        """Logits of the rows that get a token, if any does, and log probabilities of prompts."""
        if step.decode is not None:
            logits = self._replayed(step, step.decode, taps)
            num_rows = step.sampling.num_rows
            if num_rows == step.num_tokens:
                return logits[:num_rows], []
            return logits[step.sampled_rows] if num_rows else None, []
        hidden = self._hidden(step, is_tapped=taps is not None)
        adapters = None if step.forward is None else step.forward.adapters
        prompts = [(rows, self._score_prompt(hidden, rows, adapters)) for rows in step.prompt_rows]
        if not step.sampling.num_rows:
            return None, prompts
        if len(hidden) != step.sampling.num_rows:
            hidden = hidden[step.sampled_rows]
        if adapters is not None and len(adapters) != step.sampling.num_rows:
            adapters = adapters[step.sampled_rows]
        return self.model.logits(hidden, adapters), prompts

    def _replayed(self, step: Step, decode: torch.Tensor, taps: Taps | None) -> torch.Tensor:
        """Logits of all rows of a decode graph."""
        assert self.graphs is not None, "the graphs chose the size of this step"
        found = received(self.model, step.num_tokens, self.slots.device)
        logits = self.graphs.run(decode, None, step.kept, found, step.tree, is_tapped=taps is not None)
        if not self.model.stage.is_last:
            self.model.stage.send(self.graphs.hidden(step.num_tokens))
        self._stages.carry(taps)
        return logits

    def _tapped(self, step: Step) -> tuple[Step, Taps | None]:
        """The step, and where it leaves the hidden states that the drafter reads, if there is one that reads any."""
        shape = self.drafter.taps
        if shape is None:
            return step, None
        if step.forward is None:
            graphs = self.graphs if step.padded is None else self.prompt_graphs
            assert graphs is not None, "they chose the size of this step"
            states = graphs.states(step.num_tokens)
            return step, None if states is None else shape.taps_in(states)
        taps = shape.taps(step.num_tokens, self.model.dtype, self.slots.device)
        return replace(step, forward=replace(step.forward, taps=taps)), taps

    def _hidden(self, step: Step, is_tapped: bool) -> torch.Tensor:
        """The hidden states of all tokens, or of those that are read. A graph has its memory already: it fails on no
        rank alone."""
        if step.padded is not None:
            assert self.prompt_graphs is not None, "they chose the shape of this step"
            return self.prompt_graphs.run(step.padded, is_tapped)
        inputs = step.forward
        assert inputs is not None, "a step has exactly one of the three"
        if not self.model.leaves_rows:
            inputs = replace(inputs, read=None)
        if not self._compares(step):
            return self._passed(inputs)
        return self._pact.run_pass(lambda: self._passed(inputs), inputs)

    def _passed(self, inputs: ForwardInput) -> torch.Tensor:
        """A pass through the layers that are here."""
        found = received(self.model, len(inputs.token_ids), self.slots.device)
        hidden = self.model(replace(inputs, received=found), self.cache)
        self.model.stage.send(hidden)
        self._stages.carry(inputs.taps)
        return hidden

    def _compares(self, step: Step) -> bool:
        """Whether the ranks tell each other how this step went."""
        return self.group.size > 1 and step.has_prompts

    def _sample(self, logits: torch.Tensor, step: Step, masks: GrammarMasks | None) -> Sampled:
        """Tokens of the rows. Nothing has changed when this fails."""
        rows, decodes = self.slots.rows, step.sampling.decodes
        if decodes is not None:
            return sample_decodes(logits, step.sampling, decodes, rows.kept, masks)
        return sample(logits, step.sampling, rows.tokens, masks)

    def _score_prompt(self, hidden: torch.Tensor, rows: PromptRows, adapters: AdapterRows | None) -> Scored:
        """Log probabilities of prompt tokens; in a stage before the last, room for them."""
        if self._stages.is_told:
            return room_for_scored(rows.count, rows.num_top, self.slots.device)
        return score_prompt(self.model, self.slots.rows.tokens, hidden, rows, adapters)
