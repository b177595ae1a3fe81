"""Runs plans on an engine as the router does, and times them as the device does."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from penstock_server.base.config import CacheConfig, CudaConfig, KvCacheDtype
from penstock_server.engine.engine import Engine
from penstock_server.engine.outcome import Outcome
from penstock_server.engine.pending import Launched
from penstock_server.engine.plan import Admit, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams

from benchmarks import local_engine
from benchmarks.adapter_folder import make_adapter
from benchmarks.gpu.clock import Stopwatch, time_call
from benchmarks.gpu.floors import rates
from benchmarks.gpu.lines import Result
from benchmarks.gpu.models import MODELS

_IN_FLIGHT = 2
_BLOCK_SIZE = 16
# Steps before those that are timed.
_WARM_UP_STEPS = 4


@dataclass(frozen=True)
class Setting:
    """An engine to measure: its model, and what differs from the defaults."""

    model: str
    num_slots: int
    max_len: int
    graphs: bool = True
    cache_dtype: KvCacheDtype = "auto"


def load(folder: Path, device: str, setting: Setting) -> Engine:
    """A shard's engine with random weights."""
    cache = CacheConfig(
        setting.max_len, None, setting.num_slots, None, _BLOCK_SIZE, dtype=setting.cache_dtype
    )
    graphs = CudaConfig(None if setting.graphs else ())
    kind: dict[str, Any] = {"load_format": "dummy", "model_impl": "native", "generation_config": "none"}
    return local_engine.load(folder, cache, device=device, cuda=graphs, **kind)


class EngineBench:
    """A plan is launched before the outcome of the previous one, as the router does."""

    def __init__(self, setting: Setting, engine: Engine, device: str) -> None:
        self.setting = setting
        self.engine = engine
        self.device = device
        self._step = 0
        self._pending: deque[Launched] = deque()
        self._outcomes: list[Outcome] = []

    def decode(
        self, num_rows: int, context: int, steps: int, adapter_ids: Sequence[str] = ("",)
    ) -> list[Result]:
        """Steps of one token for a number of sequences of one context length, after a prompt for each.

        `adapter_ids`: of the sequences, in turns.
        """
        self.prefill(range(num_rows), context, steps + _WARM_UP_STEPS, adapter_ids)
        self.decode_steps(num_rows, context, _WARM_UP_STEPS)
        self._outcomes.clear()
        watch = Stopwatch(self.device)
        self.decode_steps(num_rows, context + _WARM_UP_STEPS, steps)
        taken = watch.read() / steps
        self.drain()
        busy = median(_busy_us(outcome) for outcome in self._outcomes)
        self.engine.clear()
        floor = rates(self.device).floor_us(self._read_bytes(num_rows, context))
        return [
            Result("step", taken, "us", floor, note=f"of {steps}"),
            Result("rate", num_rows / taken * 1e6, "tokens/s", num_rows / floor * 1e6),
            Result("nothing computed", 100 * max(0.0, 1 - busy / taken), "%", note="of a step's time"),
        ]

    def load_adapters(self, count: int, rank: int) -> list[str]:
        """The ids of adapters of all linear layers."""
        adapters, config = self.engine.slots.adapters, MODELS[self.setting.model]
        with TemporaryDirectory() as root:
            folders = [
                make_adapter(Path(root) / str(number), config, number, rank) for number in range(count)
            ]
            return [adapters.load(folder, "", folder.name).adapter_id for folder in folders]

    def mixed(self, num_rows: int, context: int, chunk: int, steps: int) -> list[Result]:
        """Steps of one token for a number of sequences, each beside a part of a prompt of one more."""
        self.prefill(range(num_rows), context, steps)
        length = chunk * steps
        first_block = num_rows * -(-(context + steps) // _BLOCK_SIZE)
        blocks = list(range(first_block, first_block + -(-(length + 1) // _BLOCK_SIZE)))
        admitted = [Admit(num_rows, [3] * length, length, blocks, SamplingParams())]
        watch = Stopwatch(self.device)
        for step in range(steps):
            spans = [Span(slot, context + step, 1) for slot in range(num_rows)]
            spans.append(Span(num_rows, step * chunk, chunk))
            self._send(Plan(1, self._step + 1, admitted=[] if step else admitted, spans=spans))
        taken = watch.read() / steps
        self.drain()
        self.engine.clear()
        flop = 2 * self._active_parameters() * (num_rows + chunk)
        floor = rates(self.device).floor_us(self._read_bytes(num_rows, context), flop)
        return [Result("step", taken, "us", floor, note=f"of {steps}")]

    def prompt(self, length: int) -> list[Result]:
        """A prompt alone, from its plan to its first token."""
        taken = median(self._one_prompt(length) for _ in range(3))
        floor = rates(self.device).floor_us(0, 2 * self._active_parameters() * length)
        return [
            Result("time", taken, "us", floor, note="median of 3; the floor is that of the products"),
            Result("rate", length / taken * 1e6, "tokens/s", length / floor * 1e6),
        ]

    def replay(self, num_rows: int) -> list[Result]:
        """The bare graph of a decode step (on a CPU: its recording), repeated."""
        graphs = self.engine.graphs
        if graphs is None or not graphs.sizes:
            return [Result("time", None, note="there are no graphs")]
        size = next(size for size in graphs.sizes if size >= num_rows)
        inputs = torch.zeros(2, size, dtype=torch.int64, device=self.engine.slots.device)
        with torch.inference_mode():
            time = time_call(lambda: graphs.run(inputs), self.device)
        floor = rates(self.device).floor_us(self._read_bytes(num_rows, 1))
        return [Result("time", time.median, "us", floor, note=f"of {size} rows, {time.note}")]

    def decode_steps(self, num_rows: int, context: int, steps: int) -> None:
        """Launches steps of one token for the first slots, from a length of their sequences on."""
        for step in range(steps):
            self._send(
                Plan(1, self._step + 1, spans=[Span(slot, context + step, 1) for slot in range(num_rows)])
            )

    def _send(self, plan: Plan) -> None:
        """Launches a plan; waits for the outcome of the plan two before it."""
        self._step += 1
        self._pending.append(self.engine.launch(plan))
        if len(self._pending) > _IN_FLIGHT:
            self._take()

    def drain(self) -> None:
        """Waits for all outcomes."""
        while self._pending:
            self._take()

    def _take(self) -> None:
        outcome = self._pending.popleft().resolve()
        assert not outcome.errors, outcome.errors
        self._outcomes.append(outcome)

    def prefill(self, slots: range, length: int, room: int, adapter_ids: Sequence[str] = ("",)) -> None:
        """Admits prompts of a length, with blocks for `room` more tokens, and computes them."""
        blocks_each = -(-(length + room) // _BLOCK_SIZE)
        most = self.engine.slots.limits.max_step_tokens
        for slot in slots:
            blocks = list(range(slot * blocks_each, (slot + 1) * blocks_each))
            used = adapter_ids[slot % len(adapter_ids)]
            admit = Admit(slot, [3] * length, length, blocks, SamplingParams(), adapter_id=used)
            for start in range(0, length, most):
                span = Span(slot, start, min(most, length - start))
                self._send(Plan(1, self._step + 1, admitted=[admit] if start == 0 else [], spans=[span]))
        self.drain()

    def _one_prompt(self, length: int) -> float:
        watch = Stopwatch(self.device)
        self.prefill(range(1), length, 1)
        taken = watch.read()
        self.engine.clear()
        return taken

    def _active_parameters(self) -> float:
        """The weights that one token is multiplied by: of the experts only the chosen ones."""
        config = MODELS[self.setting.model]
        share = config.get("num_experts_per_tok", 1) / config.get("num_local_experts", 1)
        return sum(
            part.numel() * (share if ".experts." in name else 1) for name, part in _weights(self.engine)
        )

    def _read_bytes(self, num_rows: int, context: int) -> float:
        """Bytes that a decode step must read: the cache, and all weights but embeddings that are not also the head."""
        per_token = self.engine.cache.block_bytes / self.engine.slots.limits.block_size
        weights = sum(part.nbytes for _, part in _weights(self.engine))
        return weights + num_rows * context * per_token


def _weights(engine: Engine) -> list[tuple[str, torch.Tensor]]:
    model: Any = engine.model
    is_tied = model.lm_head is None
    return [
        (name, part) for name, part in model.named_buffers() if is_tied or not name.startswith("embedding.")
    ]


def _busy_us(outcome: Outcome) -> int:
    timings = outcome.timings
    return timings.upload_us + timings.forward_us + timings.sample_us + timings.download_us
