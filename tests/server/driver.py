"""A miniature router for tests: it owns sequences and blocks, makes plans, and keeps what came back.

It runs against an engine in this process or against shards over the wire; both answer one `Plan` with one outcome.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock_server.base.config import CacheConfig, DraftLimits, GroupConfig, ServerConfig
from penstock_server.engine.engine import Engine
from penstock_server.engine.outcome import Outcome, PromptLogprobs
from penstock_server.engine.plan import Admit, Append, Grammar, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.files.draft_folder import DraftFolder, open_draft_folder
from penstock_server.files.model_folder import ModelFolder, open_folder
from penstock_server.load.load_engine import load_engine

Execute = Callable[[Plan], Any]


def _by_row(found: Any, name: str) -> list[list[Any]]:
    """The values of each prompt token: in the message, all rows follow each other."""
    rows = list(getattr(found, name))
    if isinstance(found, PromptLogprobs):
        return rows
    width = len(rows) // len(found.logprobs)
    return [rows[number * width : (number + 1) * width] for number in range(len(found.logprobs))]


def make_engine(folder: Path, **options: Any) -> Engine:
    """An engine in this process, small by default."""
    config = engine_config(folder, **options)
    return load_engine(config, *opened_both(config))


def opened(config: ServerConfig) -> ModelFolder:
    """The folder that the settings name."""
    folder, quantize = config.model_path, config.quantize
    return open_folder(folder, config.load_format, config.model_impl, quantize=quantize)


def opened_both(config: ServerConfig) -> tuple[ModelFolder, DraftFolder | None]:
    """The folder of the model, and that of what drafts."""
    folder = opened(config)
    return folder, open_draft_folder(config, folder)


def engine_config(folder: Path, **options: Any) -> ServerConfig:
    """Settings of a small engine."""
    sizes = {
        "max_sequence_len": None,
        "max_step_tokens": None,
        "num_slots": 8,
        "num_blocks": 64,
        "block_size": 4,
        "num_snapshots": None,
        "num_draft_states": 0,
        "is_poisoned": False,
    }
    kept = options.pop("kv_cache_dtype", "auto")
    cache = CacheConfig(**{name: options.pop(name, value) for name, value in sizes.items()}, dtype=kept)
    defaults = {
        "load_format": "safetensors",
        "model_impl": "auto",
        "generation_config": "auto",
        "dtype": "auto",
        "device": "cpu",
        "threads": 1,
        "batch_invariant": False,
        "group": GroupConfig(0, 1, None),
        # Plans may have drafts; for no number of sequences are they recorded ahead.
        "draft_limits": DraftLimits(max_drafts=16),
    }
    return ServerConfig(
        model_path=folder,
        tokenizer_path=folder / "tokenizer.json",
        uds_path=folder / "unused.sock",
        json_output=False,
        parent_pipe_fd=None,
        cache=cache,
        **{**defaults, **options},
    )


def execute_on(engine: Engine) -> Execute:
    """Runs a plan and waits for it."""
    return lambda plan: engine.launch(plan).resolve()


@dataclass
class Sequence:
    """One request as the router sees it."""

    prompt: list[int]
    max_new: int
    params: SamplingParams = field(default_factory=SamplingParams)
    grammar: Grammar | None = None
    adapter_id: str = ""
    output: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tops: list[tuple[list[int], list[float]]] = field(default_factory=list)
    prompt_logprobs: dict[int, float] = field(default_factory=dict)
    prompt_tops: dict[int, tuple[list[int], list[float]]] = field(default_factory=dict)
    errors: list[Any] = field(default_factory=list)
    slot: int | None = None
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    # The blocks it held last: nobody has written there since, unless the blocks were given out again.
    left_blocks: list[int] = field(default_factory=list)
    # For a model with states: the snapshot from which it begins when it gets a slot again.
    snapshot: int | None = None

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output

    @property
    def done(self) -> bool:
        return len(self.output) >= self.max_new or bool(self.errors)


class Driver:
    """Runs sequences to their ends. With a `seed`, chunks are odd, order is random and sequences are preempted."""

    def __init__(
        self, execute: Execute, num_slots: int = 8, num_blocks: int = 64, block_size: int = 4
    ) -> None:
        self.execute = execute
        self.block_size = block_size
        self.free_slots = list(range(num_slots))
        self.free_blocks = list(range(num_blocks))
        self.epoch = 1
        self.step = 0

    def run(
        self, sequences: list[Sequence], seed: int | None = None, max_chunk: int = 10**9
    ) -> list[Sequence]:
        """Run all to their ends."""
        rng = random.Random(seed)
        if seed is not None:
            rng.shuffle(self.free_slots)
            rng.shuffle(self.free_blocks)
        retired: list[int] = []
        while not all(sequence.done for sequence in sequences):
            retired = self._turn(
                [s for s in sequences if not s.done], rng, seed is not None, max_chunk, retired
            )
        if retired:
            self.send(Plan(self.epoch, 0, retired=retired))
        return sequences

    def share_prefix(self, donor: Sequence, sequence: Sequence) -> None:
        """Give a sequence the full blocks of one that ended and began with the same tokens, as a prefix cache does."""
        shared = min(len(sequence.tokens) - 1, len(donor.tokens) - 1) // self.block_size
        sequence.blocks = donor.left_blocks[:shared]
        sequence.computed = shared * self.block_size
        self.free_blocks = [block for block in self.free_blocks if block not in sequence.blocks]

    def send(self, plan: Plan) -> Any:
        """Number a plan and run it."""
        self.step += 1
        plan = Plan(
            **{
                **{name: getattr(plan, name) for name in plan.__slots__},
                "epoch": self.epoch,
                "step": self.step,
            }
        )
        return self.execute(plan)

    def _turn(
        self, live: list[Sequence], rng: random.Random, wild: bool, max_chunk: int, retired: list[int]
    ) -> list[int]:
        admitted: list[Admit] = []
        appended: list[Append] = []
        spans: list[Span] = []
        leaving = list(retired)
        for sequence in live:
            if wild and rng.random() < 0.2 and spans:
                continue  # waits a step
            if wild and sequence.slot is not None and rng.random() < 0.1:
                leaving.append(self.release(sequence))
                continue
            chunk = rng.randint(1, 7) if wild else max_chunk
            spans.append(self._span(sequence, chunk, admitted, appended))
        if wild:
            rng.shuffle(spans)
        outcome = self.send(Plan(0, 0, leaving, admitted, appended, spans=spans))
        return self._take(outcome, live)

    def _span(self, sequence: Sequence, chunk: int, admitted: list[Admit], appended: list[Append]) -> Span:
        length = min(chunk, len(sequence.tokens) - sequence.computed)
        needed = -(-(sequence.computed + length) // self.block_size) - len(sequence.blocks)
        blocks = [self.free_blocks.pop() for _ in range(needed)]
        sequence.blocks += blocks
        if sequence.slot is None:
            sequence.slot = self.free_slots.pop(0)
            admitted.append(
                Admit(
                    sequence.slot,
                    sequence.tokens,
                    len(sequence.prompt),
                    list(sequence.blocks),
                    sequence.params,
                    sequence.grammar,
                    sequence.adapter_id,
                )
            )
        elif blocks:
            appended.append(Append(sequence.slot, blocks))
        span = Span(sequence.slot, sequence.computed, length)
        sequence.computed += length
        return span

    def release(self, sequence: Sequence) -> int:
        """Preempt or end: everything on the shard is given back, to be computed again. Returns the slot to retire."""
        slot = sequence.slot
        assert slot is not None
        self.free_slots.append(slot)
        self.free_blocks += sequence.blocks
        sequence.left_blocks = sequence.blocks
        sequence.slot, sequence.blocks, sequence.computed = None, [], 0
        return slot

    def _take(self, outcome: Any, live: list[Sequence]) -> list[int]:
        by_slot = {sequence.slot: sequence for sequence in live}
        for slot, token, logprob in zip(
            outcome.sampled_slots, outcome.sampled_ids, outcome.sampled_logprobs, strict=True
        ):
            by_slot[slot].output.append(token)
            by_slot[slot].logprobs.append(logprob)
        for top in outcome.top_tokens:
            by_slot[top.slot].tops.append((list(top.token_ids), list(top.logprobs)))
        for found in outcome.prompt_logprobs:
            by_slot[found.slot].prompt_logprobs.update(enumerate(found.logprobs, start=found.start))
            tops = zip(_by_row(found, "top_ids"), _by_row(found, "top_logprobs"), strict=True)
            by_slot[found.slot].prompt_tops.update(enumerate(tops, start=found.start))
        for slot in outcome.late_slots:
            # It sat the step out: its last position is sent once more.
            by_slot[slot].computed -= 1
        for error in outcome.errors if isinstance(outcome, Outcome) else outcome.slot_errors:
            by_slot[error.slot].errors.append(error)
        return [self.release(sequence) for sequence in live if sequence.done and sequence.slot is not None]
