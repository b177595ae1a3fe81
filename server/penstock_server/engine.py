"""Holds the model, the cache and the slots, and runs plans. Knows nothing of streams and threads.

`launch` gives a step to the device and returns at once where the device works by itself; the outcome is fetched from
the `PendingOutcome`. On the CPU it is ready when `launch` returns.
"""

import time
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from penstock_server.checks import Limits
from penstock_server.config import MAX_TOP_LOGPROBS
from penstock_server.distributed import Group
from penstock_server.generation_config import GenerationDefaults
from penstock_server.kv_cache import KVCache
from penstock_server.model_folder import ModelFolder
from penstock_server.models.spec import CacheShape, ModelFacts
from penstock_server.plan import (
    Admit,
    ErrorCode,
    Outcome,
    Plan,
    PromptLogprobs,
    SamplingParams,
    SlotError,
    Span,
    Timings,
    TopTokens,
)
from penstock_server.sampling import Sampled, sample, token_logprobs
from penstock_server.slots import Slots
from penstock_server.step import ForwardInput, PromptRows, SampledRow, Step

# Prompt log probabilities need logits of every prompt token: so many rows of the vocabulary at a time.
_PROMPT_ROWS_AT_A_TIME = 128


@dataclass(frozen=True, slots=True)
class Description:
    """What Describe reports and does not change while the process lives."""

    spec: ModelFacts
    limits: Limits
    dtype: str
    device: str
    rank: int
    world_size: int
    max_top_logprobs: int
    abilities: tuple[str, ...]
    generation: GenerationDefaults | None


class Model(Protocol):
    """What computes steps: our decoder, or a model of transformers."""

    facts: ModelFacts
    cache_shape: CacheShape
    dtype: torch.dtype
    # What it can do beyond others, or is: told by Describe.
    abilities: tuple[str, ...]

    def __call__(self, inputs: ForwardInput, cache: KVCache) -> torch.Tensor:
        """Hidden states, [num_tokens, hidden_size]; fills the cache on the way."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[num_rows, hidden_size] to [num_rows, vocab_size] in float32."""
        ...


class Clock:
    """Splits a step's time into its stages."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap_us(self) -> int:
        """Microseconds since the last lap."""
        now = time.perf_counter()
        elapsed, self._last = now - self._last, now
        return int(elapsed * 1e6)


class PendingOutcome:
    """A launched step. `resolve` waits for the device and brings the results to the host."""

    def __init__(self, plan: Plan, errors: list[SlotError], timings: Timings) -> None:
        self.plan = plan
        self.errors = errors
        self.timings = timings
        self.rows: list[SampledRow] = []
        self.sampled: Sampled | None = None
        self.grammar_errors: dict[int, str] = {}
        self.prompts: list[tuple[PromptRows, torch.Tensor]] = []

    def ready(self) -> bool:
        """Whether `resolve` would return without waiting."""
        return True

    def resolve(self) -> Outcome:
        """The outcome on the host."""
        clock = Clock()
        outcome = Outcome(self.plan.epoch, self.plan.step, errors=list(self.errors))
        for rows, logprobs in self.prompts:
            outcome.prompt_logprobs.append(PromptLogprobs(rows.slot, rows.start, logprobs.tolist()))
        if self.sampled is not None:
            self._report(self.sampled, outcome)
        return replace(outcome, timings=replace(self.timings, download_us=clock.lap_us()))

    def _report(self, sampled: Sampled, outcome: Outcome) -> None:
        ids, logprobs = sampled.token_ids.tolist(), sampled.logprobs.tolist()
        failures = self._failures(sampled)
        for number, row in enumerate(self.rows):
            if number in failures:
                outcome.errors.append(SlotError(row.slot, *failures[number]))
                continue
            outcome.sampled_slots.append(row.slot)
            outcome.sampled_ids.append(ids[number])
            outcome.sampled_logprobs.append(logprobs[number])
            if row.params.num_top_logprobs:
                outcome.top_tokens.append(_top_tokens(sampled, number, row))

    def _failures(self, sampled: Sampled) -> dict[int, tuple[ErrorCode, str]]:
        """Rows that got no token. Their slots go on as if they had: what is in flight already builds on that."""
        failures = {number: (ErrorCode.GRAMMAR, message) for number, message in self.grammar_errors.items()}
        if sampled.possible is not None:
            for number in (~sampled.possible).nonzero().flatten().tolist():
                failures.setdefault(number, (ErrorCode.GRAMMAR, "the grammar allows no token"))
        for number in (~sampled.finite).nonzero().flatten().tolist():
            failures[number] = (ErrorCode.NOT_FINITE, "the model's logits are not finite")
        return failures


class Engine:
    """One rank's engine."""

    def __init__(
        self, model: Model, cache: KVCache, slots: Slots, group: Group, description: Description
    ) -> None:
        self.model = model
        self.cache = cache
        self.slots = slots
        self.group = group
        self.description = description

    def clear(self) -> None:
        """Drop all slots; the weights stay."""
        self.slots.clear()

    def agree(self, epoch: int, step: int) -> bool:
        """Whether all ranks are at this plan; waits for those behind. False: another rank is at a newer plan already.

        When a router dies while it sends, some ranks hold a plan that others never get. Stepping on would mix the
        collectives of two plans, so the rank that is behind gives its plan up and the one ahead waits.
        """
        if self.group.size == 1:
            return True
        mine = (epoch, step)
        while True:
            everyone = self.group.gather_numbers(*mine)
            if min(everyone) == max(everyone):
                return True
            if mine < max(everyone):
                return False

    @torch.inference_mode()
    def launch(self, plan: Plan) -> PendingOutcome:
        """Apply a plan and start its step. Raises InvalidPlan for what no single slot is to blame."""
        clock = Clock()
        errors = self.slots.apply(plan)
        self.cache.copy_blocks(plan.copied_from, plan.copied_to)
        spans = self.slots.select(plan, errors)
        if not spans:
            return PendingOutcome(plan, list(errors.values()), Timings(upload_us=clock.lap_us()))
        step = self.slots.stage(spans)
        if self.cache.is_poisoned:
            self.cache.poison(self.slots.unwritten(spans))
        try:
            return self._compute(plan, step, list(errors.values()), clock)
        except (MemoryError, RuntimeError) as error:
            if self.group.size > 1 or not is_out_of_memory(error):
                raise
            failed = [
                SlotError(span.slot, ErrorCode.OUT_OF_MEMORY, "no memory for this step") for span in spans
            ]
            return PendingOutcome(plan, list(errors.values()) + failed, Timings(upload_us=clock.lap_us()))

    def _compute(self, plan: Plan, step: Step, errors: list[SlotError], clock: Clock) -> PendingOutcome:
        upload_us = clock.lap_us()
        computing = self.slots.grammars.start_masks(step.sampling.rows)
        hidden = self.model(step.forward, self.cache)
        logits = self.model.logits(hidden[step.sampled_rows]) if step.sampling.rows else None
        prompts = [(rows, self._prompt_logprobs(hidden, rows)) for rows in step.prompt_rows]
        forward_us = clock.lap_us()
        sampled, masks = None, None
        if logits is not None:
            masks = None if computing is None else computing.result()
            sampled = sample(logits, step.sampling, self.slots.tokens, masks)
            self.slots.commit(step.sampling, sampled.token_ids, masks)
        pending = PendingOutcome(plan, errors, Timings(upload_us, forward_us, clock.lap_us()))
        pending.rows, pending.sampled, pending.prompts = step.sampling.rows, sampled, prompts
        pending.grammar_errors = {} if masks is None else masks.errors
        return pending

    def _prompt_logprobs(self, hidden: torch.Tensor, rows: PromptRows) -> torch.Tensor:
        targets = self.slots.tokens[rows.slot, rows.start : rows.start + rows.count].long()
        states = hidden[rows.first_row : rows.first_row + rows.count]
        parts = [
            slice(row, row + _PROMPT_ROWS_AT_A_TIME) for row in range(0, rows.count, _PROMPT_ROWS_AT_A_TIME)
        ]
        return torch.cat([token_logprobs(self.model.logits(states[part]), targets[part]) for part in parts])

    def warm_up(self) -> None:
        """Run a prompt and a decode through the real path, so that the first request pays for no initialisation."""
        limits = self.slots.limits
        length = min(8, limits.max_sequence_len - 2, limits.max_step_tokens, limits.block_size - 1)
        if length >= 1:
            admit = Admit(0, [0] * length, length, [0], SamplingParams())
            self.launch(Plan(0, 1, admitted=[admit], spans=[Span(0, 0, length)])).resolve()
            self.launch(Plan(0, 2, spans=[Span(0, length, 1)])).resolve()
        self.clear()


def describe(
    slots: Slots, model: Model, folder: ModelFolder, device: torch.device, group: Group
) -> Description:
    """The facts of a built engine."""
    return Description(
        spec=model.facts,
        limits=slots.limits,
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(device),
        rank=group.rank,
        world_size=group.size,
        max_top_logprobs=min(MAX_TOP_LOGPROBS, model.facts.vocab_size),
        abilities=(
            "prompt_logprobs",
            *(["grammar"] if slots.grammars.available else []),
            *model.abilities,
        ),
        generation=folder.generation,
    )


def is_out_of_memory(error: Exception) -> bool:
    """torch's CPU allocator raises a bare RuntimeError."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)


def _top_tokens(sampled: Sampled, number: int, row: SampledRow) -> TopTokens:
    assert sampled.top_ids is not None, "a row asked for top tokens"
    assert sampled.top_logprobs is not None, "ids come with their logprobs"
    count = row.params.num_top_logprobs
    return TopTokens(
        row.slot, sampled.top_ids[number, :count].tolist(), sampled.top_logprobs[number, :count].tolist()
    )
