"""Part 6: what a sanitizer says of the kernels, and where profilers see the time of a decode step.

A tool that is not on the machine has a line that says so.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.cases import CASES, environment, pytest_command
from benchmarks.gpu.engine import load_bench
from benchmarks.gpu.engine_bench import Setting
from benchmarks.gpu.lines import Result
from benchmarks.gpu.origin import ROOT
from benchmarks.gpu.run import Run

# Cases of every kind of kernel, and few: under a sanitizer they take 10 to 100 times as long.
_SANITIZED = (
    "soft_cap_and_sinks or one_huge or tree_of_drafted or test_cache_of_eight or layers_share or norm_of_heads_inside"
    " or rotate_and_store_into or copy_blocks or other_activations or test_tiles or draw_by_their_own or ties_on"
    " or equal_logits or bias_and_bitmask or rows_that_are_not_finite"
)
_CHECKS = ("memcheck", "racecheck", "synccheck", "initcheck")
# Seconds of one check: all of them fit into a part.
_CHECK_S = 110.0
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")
# Streams and their context, of the steps that are profiled.
_STREAMS, _CONTEXT, _STEPS = 64, 1024, 16
# Kernels of a step with a line of their own.
_MOST_KERNELS = 25


def run(run: Run) -> None:
    run.measure("torch.profiler", partial(_profile, run))
    run.measure("nsys", partial(_nsys, run))
    for check in _CHECKS:
        run.measure(f"compute-sanitizer {check}", partial(_sanitize, run, check))


def decode_steps(rehearse: bool) -> Callable[[], None]:
    """Decode steps of an engine that is loaded and warm; each call computes them anew."""
    model, streams, context = ("tiny", 2, 64) if rehearse else ("llama-3.1-8b", _STREAMS, _CONTEXT)
    bench = load_bench(Setting(model, streams, context + 4 * _STEPS), "cpu" if rehearse else "cuda")
    bench.prefill(range(streams), context, 2 * _STEPS)
    bench.decode_steps(streams, context, _STEPS)
    bench.drain()

    def steps() -> None:
        bench.decode_steps(streams, context + _STEPS, _STEPS)
        bench.drain()

    return steps


def _profile(run: Run) -> list[Result]:
    """Time of a step by kernel; the trace is in the folder of the results."""
    steps = decode_steps(run.rehearse)
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * (run.device == "cuda")]
    with profile(activities=activities) as profiler:
        steps()
    profiler.export_chrome_trace(str(run.out / "decode-trace.json.gz"))
    on_device = run.device == "cuda"
    found = [
        (row.self_device_time_total if on_device else row.self_cpu_time_total, row.count, row.key)
        for row in profiler.key_averages()
    ]
    found.sort(reverse=True)
    whole = Result("all", sum(time for time, *_ in found) / _STEPS, "us", note="of a step")
    return [whole, *(
        Result(name[:80], time / _STEPS, "us", note=f"{count / _STEPS:g} a step")
        for time, count, name in found[:_MOST_KERNELS] if time
    )]  # fmt: skip


def _nsys(run: Run) -> list[Result]:
    """Runs the same steps under Nsight Systems; its report is in the folder of the results."""
    nsys = _find("nsys")
    if nsys is None:
        return [Result("report", None, note="nsys is not on this machine")]
    report = run.out / "decode.nsys-rep"
    options = ("--force-overwrite=true", "--trace=cuda,osrt", "--cuda-graph-trace=node", f"--output={report}")
    mode = ["rehearse"] * run.rehearse
    command = [nsys, "profile", *options, sys.executable, "-m", "benchmarks.gpu.inspection", *mode]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=_CHECK_S)
    return [Result("report", report.stat().st_size / 2**20, "MiB", note=report.name)]


def _sanitize(run: Run, check: str) -> list[Result]:
    """Errors that compute-sanitizer finds in some cases; PyTorch's own pool would hide accesses beyond a tensor."""
    sanitizer = _find("compute-sanitizer")
    if sanitizer is None:
        return [Result("errors", None, note="compute-sanitizer is not on this machine")]
    log = run.out / f"sanitizer-{check}.log"
    command = [sanitizer, f"--tool={check}", "--target-processes=all", f"--log-file={log}",
               *pytest_command(), "-k", _SANITIZED, str(CASES)]  # fmt: skip
    said = subprocess.run(
        command, cwd=ROOT, env={**environment(run.rehearse), "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        capture_output=True, text=True, check=False, timeout=_CHECK_S,
    )  # fmt: skip
    counts = _SUMMARY.findall(log.read_text(errors="replace")) if log.exists() else []
    if not counts:
        raise RuntimeError(f"no summary: {(said.stdout + said.stderr)[-600:]}")
    last = said.stdout.strip().splitlines()[-1]
    return [Result("errors", sum(map(int, counts)), floor=0, note=f"{last}; {log.name}")]


def _find(program: str) -> str | None:
    """On the path, with CUDA, or in a package that was carried."""
    places = [Path("/usr/local/cuda/bin"), *Path("/opt/nvidia").glob("*/*/bin")]
    places += [place for path in sys.path for place in Path(path).glob("nvidia/*/compute-sanitizer")]
    found = shutil.which(program)
    return found or next((str(place / program) for place in places if (place / program).is_file()), None)


if __name__ == "__main__":
    decode_steps("rehearse" in sys.argv)()
