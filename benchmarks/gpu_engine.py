"""Measures the engine, then the whole server, on models of random weights: `python -m benchmarks.gpu_engine`.

The floor of a decode step is what it must read, weights and keys and values, at the rate of a large copy measured in
the same run; that of a prompt is its flops at the rate of a large product. `--device cpu --models tiny` tries the
script itself where there is no GPU.
"""

import argparse
import json
import subprocess
import tempfile
import time
from collections import deque
from pathlib import Path
from statistics import median
from typing import Any

import torch
from penstock_server.base.config import CacheConfig, CudaConfig, GroupConfig, ServerConfig
from penstock_server.engine.engine import Engine
from penstock_server.engine.outcome import Outcome
from penstock_server.engine.pending import PendingOutcome
from penstock_server.engine.plan import Admit, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.files.model_folder import open_folder
from penstock_server.load.load_engine import load_engine

from benchmarks.gpu_models import MODELS, write_folder
from benchmarks.gpu_report import served_table, table, write
from benchmarks.gpu_rows import Rates, Row, Served
from benchmarks.server import BIN, Server

_IN_FLIGHT = 2
_BLOCK_SIZE = 16


def rates(device: str) -> Rates:
    """Measures a large copy and a large matrix product; small ones on a CPU."""
    count, size = (2**29, 8192) if device == "cuda" else (2**22, 512)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    source = torch.ones(count, dtype=dtype, device=device)
    target, left = torch.empty_like(source), torch.randn(size, size, device=device).to(dtype)
    copy = _seconds(lambda: target.copy_(source), device)
    return Rates(2 * source.nbytes / copy, 2 * size**3 / _seconds(lambda: left @ left, device))


def _seconds(run: Any, device: str, repeats: int = 20) -> float:
    run()
    return median(_timed(run, device) for _ in range(repeats))


def _timed(run: Any, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def load(folder: Path, device: str, num_slots: int, max_len: int) -> Engine:
    """A shard's engine with random weights."""
    config = ServerConfig(
        model_path=folder, tokenizer_path=folder / "tokenizer.json", generation_config="none",
        load_format="dummy", model_impl="native", uds_path=folder / "unused.sock", dtype="auto",
        device=device, threads=None, batch_invariant=False, json_output=False, parent_pipe_fd=None,
        group=GroupConfig(0, 1, None), cache=CacheConfig(max_len, None, num_slots, None, _BLOCK_SIZE),
        cuda=CudaConfig(),
    )  # fmt: skip
    return load_engine(config, open_folder(folder, "dummy", "native"))


class Bench:
    """Runs plans on an engine as the router does: a plan is launched before the outcome of the previous one."""

    def __init__(self, name: str, engine: Engine, best: Rates) -> None:
        self.name = name
        self.engine = engine
        self.best = best
        self._step = 0
        self._pending: deque[PendingOutcome] = deque()
        self.outcomes: list[Outcome] = []

    def send(self, plan: Plan) -> None:
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
        self.outcomes.append(outcome)

    def prefill(self, slots: range, length: int, room: int) -> float:
        """Admits prompts of a length, with blocks for `room` more tokens, and computes them. Returns seconds."""
        blocks_each = -(-(length + room) // _BLOCK_SIZE)
        started = time.perf_counter()
        for slot in slots:
            blocks = list(range(slot * blocks_each, (slot + 1) * blocks_each))
            admit = Admit(slot, [3] * length, length, blocks, SamplingParams())
            most = self.engine.slots.limits.max_step_tokens
            for start in range(0, length, most):
                span = Span(slot, start, min(most, length - start))
                self.send(Plan(1, self._step + 1, admitted=[admit] if start == 0 else [], spans=[span]))
        self.drain()
        return time.perf_counter() - started

    def decode(self, num_rows: int, context: int, steps: int) -> Row:
        """Times steps of one token for a number of sequences of one context length, after a prompt for each."""
        self.prefill(range(num_rows), context, steps)
        self.outcomes.clear()
        started = time.perf_counter()
        for step in range(steps):
            spans = [Span(slot, context + step, 1) for slot in range(num_rows)]
            self.send(Plan(1, self._step + 1, spans=spans))
        self.drain()
        taken = (time.perf_counter() - started) / steps * 1e6
        busy = median(_busy_us(outcome) for outcome in self.outcomes)
        self.engine.clear()
        floor = self._read_bytes(num_rows, context) / self.best.copy * 1e6
        what = f"decode, {num_rows} x {context}"
        return Row(self.name, what, taken, floor, num_rows / taken * 1e6, max(0.0, 1 - busy / taken))

    def prompt(self, length: int) -> Row:
        """Times a prompt alone."""
        taken = median(self._one_prompt(length) for _ in range(3))
        flops = 2 * self._active_parameters() * length
        return Row(
            self.name, f"prompt, {length}", taken * 1e6, flops / self.best.product * 1e6, length / taken
        )

    def replay(self, num_rows: int) -> Row | None:
        """Times the bare graph of a decode step (on a CPU: its recording), repeated without pause."""
        graphs = self.engine.graphs
        if graphs is None or not graphs.sizes:
            return None
        size = next(size for size in graphs.sizes if size >= num_rows)
        inputs = torch.zeros(2, size, dtype=torch.int64, device=self.engine.slots.device)
        with torch.inference_mode():
            taken = _seconds(lambda: graphs.run(inputs), self.engine.slots.device.type)
        floor = self._read_bytes(num_rows, 1) / self.best.copy
        return Row(self.name, f"bare graph of {size}", taken * 1e6, floor * 1e6, num_rows / taken)

    def _one_prompt(self, length: int) -> float:
        taken = self.prefill(range(1), length, 1)
        self.engine.clear()
        return taken

    def _active_parameters(self) -> float:
        """The weights that one token is multiplied by: of the experts only the chosen ones."""
        config = MODELS[self.name]
        share = config.get("num_experts_per_tok", 1) / config.get("num_local_experts", 1)
        return sum(
            part.numel() * (share if ".experts." in name else 1) for name, part in _weights(self.engine)
        )

    def _read_bytes(self, num_rows: int, context: int) -> float:
        """Bytes that a decode step must read: the cache, and all weights but embeddings that are not also the head."""
        cache = self.engine.cache.pool
        per_token = cache.numel() * cache.element_size() / (cache.shape[2] * cache.shape[3])
        weights = sum(part.nbytes for name, part in _weights(self.engine))
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


def engine_rows(name: str, device: str, best: Rates, is_short: bool) -> list[Row]:
    """All measurements of one model's engine."""
    context, steps, batches = (64, 8, (1, 4)) if is_short else (1024, 64, (1, 32, 64))
    with tempfile.TemporaryDirectory() as folder:
        engine = load(write_folder(name, Path(folder)), device, max(batches), context + 2 * steps)
    bench = Bench(name, engine, best)
    rows = [bench.decode(num_rows, context, steps) for num_rows in batches]
    rows += [row for num_rows in batches[:1] if (row := bench.replay(num_rows))]
    return [*rows, bench.prompt(context)]


def serve(name: str, device: str, is_short: bool) -> Served:
    """Starts the launcher with this model and returns the report of penstock-bench."""
    length, output, concurrency, count = (32, 8, 2, 4) if is_short else (1024, 128, 32, 128)
    with tempfile.TemporaryDirectory() as made:
        folder = write_folder(name, Path(made) / name)
        flags = (f"--model-id={folder}", "--load-format=dummy", f"--device={device}", "--num-shard=1")
        with Server(*flags) as server:
            host, port = server.address
            report = Path(made) / "report.json"
            command = [
                str(BIN / "penstock-bench"), "run", "--url", f"http://{host}:{port}", "--api", "completions",
                "--ignore-eos", "--tokenizer", str(folder), "--input-len", str(length), "--output-len", str(output),
                "--concurrency", str(concurrency), "--num-requests", str(count), "--output", str(report),
            ]  # fmt: skip
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            summary = json.loads(report.read_text())["runs"][0]["summary"]
    return Served(
        name,
        f"{concurrency} clients, {length} to {output}",
        summary["throughput"]["output_tokens_per_s"],
        *(summary["latency_ms"][metric]["p50"] for metric in ("ttft", "itl")),
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_engine", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--models", nargs="*", choices=sorted(MODELS), default=["llama-3.1-8b", "qwen3-0.6b", "mixtral-like"]
    )
    parser.add_argument("--no-server", action="store_true", help="only the engine")
    parser.add_argument("--out", type=Path, help="folder for JSON, Markdown and a picture")
    chosen = parser.parse_args()
    is_short, best = chosen.device == "cpu", rates(chosen.device)
    rows = [row for name in chosen.models for row in engine_rows(name, chosen.device, best, is_short)]
    print(f"copy {best.copy / 1e9:,.0f} GB/s, product {best.product / 1e12:,.2f} Tflop/s\n\n{table(rows)}")
    served = [] if chosen.no_server else [serve(name, chosen.device, is_short) for name in chosen.models]
    print(f"\n{served_table(served)}" if served else "")
    if chosen.out:
        name = torch.cuda.get_device_name() if chosen.device == "cuda" else "a CPU"
        write(chosen.out, name, best, rows, served)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
