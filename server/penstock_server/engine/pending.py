"""A launched step, and its results once the device has computed them.

A step with grammars is launched in two parts, because a mask needs the token before it: what comes after the model is
launched when the masks are there, or late, while the device computes the model.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from penstock_server.base.errors import ErrorCode
from penstock_server.engine.grammar import Choice, PendingMasks
from penstock_server.engine.outcome import Outcome, PromptLogprobs, SlotError, Timings, TopTokens
from penstock_server.engine.plan import Plan
from penstock_server.engine.sampling import Sampled, Scored
from penstock_server.engine.sampling_params import EXCLUDING
from penstock_server.engine.step import PromptRows, SampledRow

# How often to look whether the model still runs, while a step waits for masks.
_POLL_S = 0.0005


class StepClock:
    """Splits a step's time into stages, as the device spends it."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._marks: list[Any] = []

    def mark(self) -> None:
        """End a stage at this point of the device's work; the first mark begins the first stage."""
        if self._is_cuda:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def is_past(self) -> bool:
        """Whether the device has reached the last mark."""
        return not self._is_cuda or bool(self._marks[-1].query())

    def is_running(self) -> bool:
        """Whether the device still computes what comes before the last mark."""
        return not self.is_past()

    def wait(self) -> None:
        """Wait until the device has reached the last mark, but not for what was launched after it."""
        if self._is_cuda:
            self._marks[-1].synchronize()

    def laps_us(self) -> list[int]:
        """Microseconds of every stage, once the last mark is past."""
        pairs = zip(self._marks, self._marks[1:], strict=False)
        if self._is_cuda:
            return [int(begin.elapsed_time(end) * 1e3) for begin, end in pairs]
        return [int((end - begin) * 1e6) for begin, end in pairs]


@dataclass(slots=True)
class PendingOutcome:
    """A launched step. `resolve` waits for the device and reads the results."""

    plan: Plan
    errors: list[SlotError]
    clock: StepClock
    rows: list[SampledRow] = field(default_factory=list)
    sampled: Sampled | None = None
    grammar_errors: dict[int, str] = field(default_factory=dict)
    late_slots: list[int] = field(default_factory=list)
    prompts: list[tuple[PromptRows, Scored]] = field(default_factory=list)
    # Slots with grammars that chose a token and were not told it yet.
    choices: list[Choice] = field(default_factory=list)
    # Launches the second part, and the masks that it waits for; None where there is none, or no more.
    rest: Callable[[], None] | None = None
    masks: PendingMasks | None = None

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

    def fail(self, errors: list[SlotError]) -> None:
        """It has no results but these errors, and those from before the model."""
        self.errors += errors
        self.rows, self.sampled, self.prompts, self.rest, self.masks = [], None, [], None, None
        self.grammar_errors = {}

    def fetch(self) -> None:
        """Start the copy of the results to the host; the last mark of the clock follows it."""
        if self.sampled is not None:
            self.sampled = _fetch_all(self.sampled)
        self.prompts = [(rows, Scored(*map(_fetch, scored))) for rows, scored in self.prompts]
        self.clock.mark()

    def ready(self) -> bool:
        """Whether `resolve` would return without waiting."""
        return self.rest is None and self.clock.is_past()

    def tell(self) -> None:
        """Tell grammars the tokens that were chosen under them; the device must have reached the last mark."""
        choices, self.choices = self.choices, []
        if choices and self.sampled is not None:
            ids = self.sampled.token_ids.tolist()
            for choice in choices:
                choice.slot.tell(ids[choice.row])

    def resolve(self) -> Outcome:
        """The outcome on the host."""
        while not self.proceed(_POLL_S):
            pass
        self.clock.wait()
        self.tell()
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
        if self.sampled is not None:
            self._report(self.sampled, outcome)
        return outcome

    def _report(self, sampled: Sampled, outcome: Outcome) -> None:
        ids, logprobs = sampled.token_ids.tolist(), sampled.logprobs.tolist()
        failures = self._failures(sampled)
        for number, row in enumerate(self.rows):
            if number in failures:
                outcome.errors.append(SlotError(row.slot, *failures[number]))
                continue
            if row.slot in self.late_slots:
                continue
            outcome.sampled_slots.append(row.slot)
            outcome.sampled_ids.append(ids[number])
            outcome.sampled_logprobs.append(logprobs[number])
            if row.params.num_top_logprobs:
                outcome.top_tokens.append(_top_tokens(sampled, number, row))

    def _failures(self, sampled: Sampled) -> dict[int, tuple[ErrorCode, str]]:
        """Rows that got no token. Their slots continue as if they had one, because plans in flight assume it."""
        failures = {number: (ErrorCode.GRAMMAR, message) for number, message in self.grammar_errors.items()}
        if sampled.possible is not None:
            for number in _where_false(sampled.possible):
                failures.setdefault(number, _no_token(self.rows[number]))
        for number in _where_false(sampled.finite):
            failures[number] = (ErrorCode.NOT_FINITE, "the model's logits are not finite")
        return failures


def _no_token(row: SampledRow) -> tuple[ErrorCode, str]:
    if row.features & EXCLUDING:
        return ErrorCode.INVALID, "no token is left that may be chosen: the others are banned or not allowed"
    return ErrorCode.GRAMMAR, "the grammar allows no token"


def _where_false(held: torch.Tensor) -> list[int]:
    return [number for number, holds in enumerate(held.tolist()) if not holds]


def _fetch_all(sampled: Sampled) -> Sampled:
    if not sampled.token_ids.is_cuda:
        return sampled
    found: dict[str, Any] = {part.name: getattr(sampled, part.name) for part in fields(sampled)}
    fetched: dict[str, Any] = {name: part if part is None else _fetch(part) for name, part in found.items()}
    return Sampled(**fetched)


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
