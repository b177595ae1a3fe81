"""Part 5: the whole server, launcher and router and shard, as clients see it: `penstock-bench` under several loads."""

import json
import subprocess
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.gpu.lines import Result
from benchmarks.gpu.models import write_folder
from benchmarks.gpu.once import Once
from benchmarks.gpu.run import Run
from benchmarks.server import BIN, Server


class Sizes(NamedTuple):
    """The sizes of this part: models, clients at once, requests of each client, tokens in and out."""

    models: tuple[str, ...]
    clients: tuple[int, ...]
    requests: int
    input_len: int
    output_len: int


REAL = Sizes(("llama-3.1-8b", "qwen3-0.6b"), (64, 1, 8, 256), 3, 1024, 128)
TINY = Sizes(("tiny",), (2,), 2, 32, 8)


# The name of each way to serve, and its flags; a rehearsal has only the first.
_WAYS = {"as it comes": (), "fp8 cache": ("--kv-cache-dtype=fp8",)}


def run(run: Run) -> None:
    sizes = TINY if run.rehearse else REAL
    for model in sizes.models:
        for title, flags in _WAYS.items():
            if title == "as it comes" or (model == sizes.models[0] and not run.rehearse):
                _measure(run, f"{model}, {title}", model, flags, sizes)


def _measure(run: Run, head: str, model: str, flags: tuple[str, ...], sizes: Sizes) -> None:
    """One server under every load; it is started when the first of them is to be measured."""
    with TemporaryDirectory() as made, ExitStack() as stack:
        folder = Path(made) / model

        def begin() -> Server:
            write_folder(model, folder)
            all_flags = (f"--model-id={folder}", "--load-format=dummy", "--num-shard=1", *flags)
            slots = f"--max-batch-size={max(sizes.clients)}"
            return stack.enter_context(Server(*all_flags, slots, device=run.device))

        server = Once(begin)

        def start() -> list[Result]:
            begun = time.perf_counter()
            server()
            return [Result("time", time.perf_counter() - begun, "s", note="from the command to its address")]

        run.measure(f"{head}: start", start)
        for clients in sizes.clients:
            name = f"{head}: {clients} clients, {sizes.input_len} to {sizes.output_len}"
            run.measure(name, partial(_load, run, server, folder, clients, sizes))


def _load(run: Run, server: Once[Server], folder: Path, clients: int, sizes: Sizes) -> list[Result]:
    """The report of penstock-bench, in a few numbers; the report itself stays in the folder of the results."""
    host, port = server().address
    count = max(8, clients * sizes.requests)
    report = run.out / f"served-{folder.name}-{clients}.json"
    command = [
        str(BIN / "penstock-bench"), "run", "--url", f"http://{host}:{port}", "--api", "completions",
        "--ignore-eos", "--tokenizer", str(folder), "--input-len", str(sizes.input_len),
        "--output-len", str(sizes.output_len), "--concurrency", str(clients), "--num-requests", str(count),
        "--output", str(report),
    ]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=max(run.seconds_left, 1))
    summary = json.loads(report.read_text())["runs"][0]["summary"]
    latency = summary["latency_ms"]
    return [
        Result("rate", summary["throughput"]["output_tokens_per_s"], "tokens/s", note=f"{count} requests"),
        Result("first token, p50", latency["ttft"]["p50"], "ms"),
        Result("first token, p99", latency["ttft"]["p99"], "ms"),
        Result("between tokens, p50", latency["itl"]["p50"], "ms"),
        Result("between tokens, p99", latency["itl"]["p99"], "ms"),
    ]
