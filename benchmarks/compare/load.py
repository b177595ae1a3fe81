"""One load on one server, by `penstock-bench`, and the figures of its report that are compared."""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.server import BIN

INPUT_LEN = 128
OUTPUT_LEN = 64
# Where the first token of a long prompt is what counts.
LONG_INPUT_LEN = 1000
LONG_OUTPUT_LEN = 8


class Load(NamedTuple):
    """`concurrency` requests at a time; texts and lengths follow from the seed."""

    concurrency: int
    num_requests: int
    seed: int
    input_len: int = INPUT_LEN
    output_len: int = OUTPUT_LEN


class Measured(NamedTuple):
    """Latency and throughput as a client measures them."""

    tokens_per_s: float
    ttft_p50_ms: float
    itl_p50_ms: float
    itl_p99_ms: float
    # A burst of prompts may cost a stream one long gap, which no percentile shows, or many short ones.
    itl_max_ms: float


def run(url: str, model: Path, load: Load, *flags: str) -> Measured:
    """Every prompt and every output has as many tokens of `model` as the load says."""
    with tempfile.NamedTemporaryFile(suffix=".json") as output:
        subprocess.run(_command(url, model, load, output.name, flags), check=True, stdout=subprocess.DEVNULL)
        return parse(json.load(output), load)


def _command(url: str, model: Path, load: Load, output: str, flags: tuple[str, ...]) -> list[str]:
    return [
        *(
            str(BIN / "penstock-bench"),
            "run",
            "--quiet",
            "--api=completions",
            f"--url={url}",
            f"--model={model}",
        ),
        *(f"--tokenizer={model}", f"--input-len={load.input_len}", f"--output-len={load.output_len}"),
        *(f"--concurrency={load.concurrency}", f"--num-requests={load.num_requests}", f"--seed={load.seed}"),
        *("--temperature=0", f"--output={output}", *flags),
    ]


def parse(report: dict[str, Any], load: Load) -> Measured:
    """Refuses a report about less or other work than was requested, so that no server looks fast by doing less."""
    summary = report["runs"][0]["summary"]
    if summary["requests"]["completed"] != summary["requests"]["total"]:
        raise ValueError(f"requests failed: {summary['errors']}")
    _check_lengths(summary["tokens"], load)
    latency = summary["latency_ms"]
    return Measured(
        tokens_per_s=summary["throughput"]["output_tokens_per_s"],
        ttft_p50_ms=latency["ttft"]["p50"],
        itl_p50_ms=latency["itl"]["p50"],
        itl_p99_ms=latency["itl"]["p99"],
        itl_max_ms=latency["itl"]["max"],
    )


def _check_lengths(tokens: dict[str, Any], load: Load) -> None:
    for kind, length in (("input", load.input_len), ("output", load.output_len)):
        seen = tokens[f"{kind}_per_request"]
        if (seen["min"], seen["max"]) != (length, length):
            raise ValueError(
                f"{kind} of {seen['min']:g} to {seen['max']:g} tokens, where {length} were asked for"
            )
