"""A launched step, and its results once the device has computed them.

A step with grammars is launched in two parts, because a mask needs the token before it: what comes after the model is
launched when the masks are there, or late, while the device computes the model.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field, fields
from itertools import compress
from typing import Any

import numpy as np
import torch

from penstock_server.base.errors import ErrorCode, StepFailed
from penstock_server.engine.drafted import Drafted
from penstock_server.engine.grammar import Choice, PendingMasks, tell
from penstock_server.engine.outcome import (
    Outcome,
    PromptLogprobs,
    SlotError,
    Timings,
    Tokens,
    TopTokens,
    not_finite,
)
from penstock_server.engine.plan import Plan, Span
from penstock_server.engine.sampling import Sampled, Scored
from penstock_server.engine.sampling_params import EXCLUDING
from penstock_server.engine.slot_table import Decodes
from penstock_server.engine.stages import Heading
from penstock_server.engine.step import PromptRows, SampledRow, SamplingInput
from penstock_server.engine.step_clock import StepClock
from penstock_server.engine.token_tree import TokenTree

# How often to look whether the model still runs, while a step waits for masks.
_POLL_S = 0.0005


@dataclass(slots=True)
class Computed:
    """A launched step that is computed already, as `PendingOutcome` has one."""

    outcome: Outcome
    learn: None = None

    def proceed(self, _wait_s: float = 0.0) -> bool:
        """All of it is launched."""
        return True

    def ready(self) -> bool:
        """Nobody has to wait."""
        return True

    def resolve(self) -> Outcome:
        """The outcome of the step."""
        return self.outcome


@dataclass(slots=True)
class PendingOutcome:
    """A launched step. `resolve` waits for the device and reads the results."""

    plan: Plan
    errors: list[SlotError]
    clock: StepClock
    heading: Heading
    sampling: SamplingInput | None = None
    sampled: Sampled | None = None
    grammar_errors: dict[int, str] = field(default_factory=dict)
    # Rows behind drafts that do not count, because what their grammar allows was not known in time.
    void_rows: set[int] = field(default_factory=set)
    late_slots: list[int] = field(default_factory=list)
    # Takes how many drafts for a slot were right; None where there are none, or it was told.
    accept: Callable[[int, int], None] | None = None
    # Before that, of a tree: takes which of its tokens were right, and these with the one that was chosen behind them.
    keep: Callable[[int, Sequence[int], Sequence[int]], None] | None = None
    # Whether each row of `sampling` counts; None where all do.
    counted: list[bool] | None = None
    # For each span of a step of decodes: the drafts that were right.
    right: list[list[int]] = field(default_factory=list)
    prompts: list[tuple[PromptRows, Scored]] = field(default_factory=list)
    # Hidden states that the last stage tells the first, for who drafts there; None: none.
    tapped: torch.Tensor | None = None
    # Slots with grammars that chose a token and were not told it yet.
    choices: list[Choice] = field(default_factory=list)
    # Launches the second part, and the masks that it waits for; None where there is none, or no more.
    rest: Callable[[], None] | None = None
    masks: PendingMasks | None = None
    # Where another stage finds what is sampled: waits until it has told that. None: it has, or there is no such stage.
    learn: Callable[[], None] | None = None
    # Whether that would not wait.
    has_come: Callable[[], bool] | None = None
    # Whether its requests failed together.
    has_failed: bool = False

    def proceed(self, wait_s: float = 0.0) -> bool:
        """Launch the second part unless it must wait for masks longer than this. Whether the whole step is launched."""
        if self.masks is not None and not self.masks.are_due(self.clock.is_running):
            self.masks.wait(wait_s)
            if not self.masks.are_due(self.clock.is_running):
                return False
        if self.rest is not None:
            rest, self.rest = self.rest, None
            rest()
            self.masks = None
        return True

    def fail(self, spans: Iterable[Span], failure: StepFailed) -> None:
        """It has no results but this, for the slots of these spans, and the errors from before the model."""
        self.errors += [SlotError(span.slot, failure.code, str(failure)) for span in spans]
        self.has_failed = True
        self.sampling, self.sampled, self.prompts, self.rest, self.masks = None, None, [], None, None
        self.grammar_errors = {}

    def fetch(self) -> None:
        """Start the copy of the results to the host; the last mark of the clock follows it."""
        if self.sampled is not None:
            self.sampled = _fetch_all(self.sampled)
        self.prompts = [(rows, Scored(*map(_fetch, scored))) for rows, scored in self.prompts]
        self.clock.mark()

    def ready(self) -> bool:
        """Whether `resolve` would return without waiting."""
        if self.learn is not None:
            return self.has_come is not None and self.has_come()
        return self.rest is None and self.clock.is_past()

    def tell(self) -> None:
        """Tell grammars the tokens that were chosen under them; the device must have reached the last mark."""
        choices, self.choices = self.choices, []
        if choices and self.sampled is not None:
            # In a step of decodes, those with grammars are sampled apart.
            ids = (self.sampled.apart or self.sampled).token_ids.tolist()
            tell((choice.slot, [ids[row] for row in self._run_of(choice.row)]) for choice in choices)

    def tell_when_done(self) -> None:
        """Wait for the device if there is anything to tell, then tell it as `tell` does."""
        if self.choices:
            self.clock.wait()
            self.tell()

    def settle(self) -> None:
        """Tell the slots how many of their drafts were right; waits for the device. Only the first time."""
        accept, self.accept = self.accept, None
        if accept is None or self.sampling is None or self.sampled is None:
            return
        self.clock.wait()
        self.tell()
        drafted = self.sampling.decodes and self.sampling.decodes.drafted
        if drafted is not None:
            self._settle_drafted(drafted, self.sampled, accept)
            return
        rows = compress(self.sampling.rows, self._count(self.sampling.rows, self.sampled))
        for slot, num_rows in Counter(row.slot for row in rows).items():
            accept(slot, num_rows - 1)

    def _settle_drafted(self, drafted: Drafted, sampled: Sampled, accept: Callable[[int, int], None]) -> None:
        chosen = sampled.token_ids.tolist()
        self.right = drafted.right(chosen, sampled.finite.tolist())
        spans = zip(drafted.slots, drafted.tokens, drafted.firsts.tolist(), self.right, strict=True)
        for slot, tokens, first, path in spans:
            if isinstance(tokens, TokenTree):
                assert self.keep is not None, "who drafts trees keeps them"
                self.keep(slot, path, [chosen[first], *(chosen[first + 1 + number] for number in path)])
            accept(slot, len(path))

    def _count(self, rows: list[SampledRow], sampled: Sampled) -> list[bool]:
        """Whether each row of a step with drafts counts; the device must have reached the last mark."""
        if self.counted is None:
            self.counted = _counted(rows, sampled, {*self._failures(rows, sampled), *self.void_rows})
        return self.counted

    def _run_of(self, first: int) -> list[int]:
        """The rows of a slot that count, of which this is the first one."""
        assert self.sampling is not None, "a row has chosen a token"
        assert self.sampled is not None, "a row has chosen a token"
        rows = self.sampling.known_rows
        if rows[first].draft is None:
            return [first]
        counted = self._count(rows, self.sampled)
        end = first + 1
        while end < len(rows) and rows[end].is_behind_draft and counted[end]:
            end += 1
        return list(range(first, end))

    def resolve(self) -> Outcome:
        """The outcome on the host. Raises StaleEpoch where it never is told."""
        if self.learn is not None:
            self.learn()
        while not self.proceed(_POLL_S):
            pass
        self.clock.wait()
        self.tell()
        self.settle()
        outcome = Outcome(
            self.plan.epoch,
            self.plan.step,
            errors=list(self.errors),
            late_slots=self.late_slots,
            timings=Timings(*self.clock.laps_us()),
        )
        for rows, scored in self.prompts:
            columns = (column.tolist() for column in scored)
            outcome.prompt_logprobs.append(PromptLogprobs(rows.slot, rows.start, *columns))
        if self.sampling is not None and self.sampled is not None:
            decodes = self.sampling.decodes
            if decodes is not None and decodes.drafted is not None:
                self._report_drafted(decodes.drafted, self.sampled, outcome)
            elif decodes is not None:
                self._report_decodes(decodes, self.sampling.apart, self.sampled, outcome)
            else:
                self._report(self.sampling.rows, self.sampled, outcome)
        return outcome

    def _report(self, rows: list[SampledRow], sampled: Sampled, outcome: Outcome) -> None:
        ids, logprobs = sampled.token_ids.tolist(), sampled.logprobs.tolist()
        failures, told = self._failures(rows, sampled), []
        for number, row in enumerate(rows):
            if self.counted is not None and not self.counted[number]:
                continue
            if number in failures:
                outcome.errors.append(failures[number])
                continue
            if row.slot in self.late_slots:
                continue
            told.append((row.slot, ids[number], logprobs[number]))
            if row.params.num_top_logprobs:
                outcome.top_tokens.append(_top_tokens(sampled, number, row))
        if told:
            outcome.sampled = Tokens.of(*zip(*told, strict=True))
        if self.counted is not None:
            drafts, reported = (
                Counter(row.slot for row in rows if row.draft is not None),
                {slot for slot, *_ in told},
            )
            outcome.num_drafted.update((slot, n) for slot, n in drafts.items() if slot in reported)

    def _report_decodes(
        self, decodes: Decodes, apart: SamplingInput | None, sampled: Sampled, outcome: Outcome
    ) -> None:
        """Report the tokens that decodes chose; their slots continue after a failure, as others do."""
        slots, held = decodes.slots, sampled.finite.numpy()
        if apart is not None and sampled.apart is not None:
            held = held.copy()
            held[decodes.apart] = True
        if not held.all():
            outcome.errors.extend(map(not_finite, slots[~held].tolist()))
        if apart is not None and sampled.apart is not None:
            self._report(apart.rows, sampled.apart, outcome)
            held[decodes.apart] = np.isin(slots[decodes.apart], outcome.sampled.slots)
        tokens = Tokens(slots, sampled.token_ids.numpy(), sampled.logprobs.numpy())
        outcome.sampled = tokens if held.all() else Tokens(*(column[held] for column in tokens))

    def _report_drafted(self, drafted: Drafted, sampled: Sampled, outcome: Outcome) -> None:
        """Report the tokens that decodes chose, and the drafts behind them that were right."""
        held = sampled.finite.numpy()
        failed = {slot for slot, row in zip(drafted.slots, drafted.firsts, strict=True) if not held[row]}
        outcome.errors.extend(not_finite(slot) for slot in drafted.slots if slot in failed)
        rows = drafted.counted(self.right)
        rows = rows[held[rows]] if failed else rows
        slots = np.repeat(np.array(drafted.slots), 1 + drafted.counts)
        columns = (slots, sampled.token_ids.numpy(), sampled.logprobs.numpy())
        outcome.sampled = Tokens(*(column[rows] for column in columns))
        outcome.num_drafted.update(drafted.numbers(but=failed))

    def _failures(self, rows: list[SampledRow], sampled: Sampled) -> dict[int, SlotError]:
        """Rows that got no token. Their slots continue as if they had one, because plans in flight assume it."""
        failures = {
            number: SlotError(rows[number].slot, ErrorCode.GRAMMAR, message)
            for number, message in self.grammar_errors.items()
        }
        if sampled.possible is not None:
            for number in _where_false(sampled.possible):
                failures.setdefault(number, _no_token(rows[number]))
        for number in _where_false(sampled.finite):
            failures[number] = not_finite(rows[number].slot)
        return failures


Launched = PendingOutcome | Computed


def _counted(rows: list[SampledRow], sampled: Sampled, failures: Container[int]) -> list[bool]:
    """Whether each row counts: all drafts before it are what was chosen, and behind a draft it did not fail.

    What fails behind a draft fails again in the next step, as the first row of its slot.
    """
    counted, holds = [], True
    for number, (row, token_id) in enumerate(zip(rows, sampled.token_ids.tolist(), strict=True)):
        holds = not row.is_behind_draft or (holds and number not in failures)
        counted.append(holds)
        holds = holds and number not in failures and token_id == row.draft
    return counted


def _no_token(row: SampledRow) -> SlotError:
    if row.features & EXCLUDING:
        message = "no token is left that may be chosen: the others are banned or not allowed"
        return SlotError(row.slot, ErrorCode.INVALID, message)
    return SlotError(row.slot, ErrorCode.GRAMMAR, "the grammar allows no token")


def _where_false(held: torch.Tensor) -> list[int]:
    return [number for number, holds in enumerate(held.tolist()) if not holds]


def _fetch_all(sampled: Sampled) -> Sampled:
    if not sampled.token_ids.is_cuda:
        return sampled
    found: dict[str, Any] = {part.name: getattr(sampled, part.name) for part in fields(sampled)}
    apart = found.pop("apart")
    fetched: dict[str, Any] = {name: part if part is None else _fetch(part) for name, part in found.items()}
    return Sampled(**fetched, apart=apart and _fetch_all(apart))


def _fetch(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the host, complete once the device has reached this point."""
    if tensor.device.type != "cuda":
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def _top_tokens(sampled: Sampled, number: int, row: SampledRow) -> TopTokens:
    assert sampled.top_ids is not None, "a row asked for top tokens"
    assert sampled.top_logprobs is not None, "ids come with their logprobs"
    count = row.params.num_top_logprobs
    return TopTokens(
        row.slot, sampled.top_ids[number, :count].tolist(), sampled.top_logprobs[number, :count].tolist()
    )
