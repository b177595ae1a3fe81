"""Steps of decodes that need no more than drawing, with drafts or without, on a CPU: each is one call into C, where its
size was recorded.

They give the same bits as all other steps, which make some hundred calls of Python. What these touch has left the
caches once the weights were read, so that they take about as long as the computation of a small model.
"""

from collections.abc import Callable

from penstock_kernels.native.decode_step import Decoded, DecodeStep, Drafts
from penstock_kernels.native.library import library

from penstock_server.base.errors import StepFailed
from penstock_server.engine.decode_graphs import DecodeGraphs
from penstock_server.engine.drafted import Drafted
from penstock_server.engine.drafting import Drafter
from penstock_server.engine.outcome import Outcome, SlotError, Timings, Tokens, not_finite
from penstock_server.engine.pending import Computed
from penstock_server.engine.plan import Plan, Spans, with_drafts
from penstock_server.engine.slots import Slots


class PlainSteps:
    """Plain steps over the slots of one engine, which has all layers."""

    def __init__(
        self, graphs: DecodeGraphs, slots: Slots, failure_of: Callable[[Exception], StepFailed | None]
    ) -> None:
        """`failure_of`: what the requests of a step are told, if only they fail."""
        self._graphs = graphs
        self._slots = slots
        self._failure_of = failure_of
        # By size, and whether the step leaves hidden states.
        self._steps: dict[tuple[int, bool], DecodeStep] = {}
        self._is_possible = slots.device.type == "cpu" and library() is not None

    def launch(
        self, plan: Plan, spans: Spans, drafter: Drafter, drafted: Drafted | None = None
    ) -> Computed | None:
        """The step over these spans of a plan that was applied without an error, and over what `drafter` drafted behind
        them; it may be that it reads the hidden states.

        None, and nothing is changed, unless these are plain decodes, and as many as were recorded.
        """
        if not self._is_possible or plan.snapshots or not self._takes(drafted):
            return None
        # Closed decodes are read by nobody.
        is_tapped = bool(plan.open_drafts or plan.admitted) and drafter.reads_step
        step = self._step(len(spans) if drafted is None else drafted.num_rows, is_tapped)
        if step is None:
            return None
        try:
            drafts = None if drafted is None else Drafts(drafted.counts, drafted.token_ids)
            decoded = step.run(spans.numbers, drafts)
            if decoded is not None and (is_tapped or drafted is not None):
                self._tell(drafter, spans, drafted, decoded, is_tapped)
        except Exception as error:
            failure = self._failure_of(error)
            if failure is None:
                raise
            errors = [SlotError(span.slot, failure.code, str(failure)) for span in spans]
            return Computed(Outcome(plan.epoch, plan.step, errors=errors))
        return None if decoded is None else Computed(_outcome(plan, decoded, drafted))

    def _takes(self, drafted: Drafted | None) -> bool:
        """Whether slots go back behind wrong ones of these by their lengths alone."""
        return drafted is None or not (drafted.has_trees or self._slots.draft_states)

    def _tell(
        self, drafter: Drafter, spans: Spans, drafted: Drafted | None, decoded: Decoded, is_tapped: bool
    ) -> None:
        """The hidden states of the step, if it `is_tapped`, to who reads them, and how much of what was drafted is
        right."""
        num_rows = len(spans) if drafted is None else drafted.num_rows
        states = self._graphs.states(num_rows) if is_tapped else None
        if states is not None:
            drafter.read(spans if drafted is None else with_drafts(spans, drafted.drafts), states)
        if drafted is not None:
            for slot, num_right in zip(drafted.slots, decoded.num_right.tolist(), strict=True):
                drafter.accept(slot, num_right)

    def _step(self, count: int, is_tapped: bool) -> DecodeStep | None:
        """The step of the recorded size for so many decodes, if it is nothing but ops in C; else None. `is_tapped`:
        whether its hidden states are read."""
        fits = 0 < count <= self._slots.limits.max_step_tokens
        size = self._graphs.size_of(count) if fits else None
        if size is None:
            return None
        step = self._steps.get((size, is_tapped))
        if step is None and (recorded := self._graphs.recorded(size, is_tapped)) is not None:
            step = self._steps[size, is_tapped] = self._slots.decode_step(*recorded)
        return step


def _outcome(plan: Plan, decoded: Decoded, drafted: Drafted | None) -> Outcome:
    slots, token_ids, logprobs, finite, laps_us, _ = decoded
    outcome = Outcome(plan.epoch, plan.step, Tokens(slots, token_ids, logprobs), timings=Timings(*laps_us))
    if not finite.all():
        outcome.errors.extend(map(not_finite, slots[~finite].tolist()))
        outcome.sampled = Tokens(slots[finite], token_ids[finite], logprobs[finite])
    if drafted is not None:
        outcome.num_drafted.update(drafted.numbers(but={error.slot for error in outcome.errors}))
    return outcome
