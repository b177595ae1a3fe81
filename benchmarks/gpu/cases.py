"""Part 2: the cases of tests/kernels, each in a line, in as many processes at once as there are cores.

Cases of one test function share a process, because what one of them does to the device ends the others of its process;
the others are then run again without it.
"""

import json
import os
import subprocess
import sys
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

from benchmarks.gpu.lines import Result
from benchmarks.gpu.origin import CARRIED, ROOT
from benchmarks.gpu.run import OutOfTime, Run, cores

CASES = ROOT / "tests" / "kernels" / "cases"
# More processes than these only wait for each other's memory.
_MOST_PROCESSES = 16
# The cases that a rehearsal runs. None of them has a model, so that it needs nothing that was carried.
_FEW = (str(CASES), "-k", "test_embedding or test_write_runs")


def run(run: Run) -> None:
    groups = [names for names in _groups(run) if any(not run.has(name) for name in names)]
    with ThreadPoolExecutor(min(cores(), _MOST_PROCESSES)) as pool:
        lock = threading.Lock()
        complete = list(pool.map(lambda names: _run_group(run, names, lock), groups))
    if not all(complete):
        raise OutOfTime


def pytest_command(rehearse: bool = False) -> list[str]:
    """pytest over the cases, without what the bare machine lacks; a rehearsal does without it, too."""
    plugins = ["-p", "no:cacheprovider", "-p", "pytest_timeout", "-p", "benchmarks.gpu.case_lines"]
    command = [sys.executable, "-m", "pytest", "-q", *plugins]
    # The tests' own models are made by transformers; the carried ones were made when they were packed.
    if CARRIED.exists() or rehearse:
        command += [f"--confcutdir={CASES}", "-p", "benchmarks.gpu.carried_models"]
    return command


def environment(rehearse: bool) -> dict[str, str]:
    """The environment variables of pytest: one thread in each process, and the interpreter in a rehearsal."""
    path = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    mode = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""} if rehearse else {}
    # Plugins that other packages of the environment bring take longer to load than most cases.
    own = {"OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return {**os.environ, **own, "PYTHONPATH": os.pathsep.join(filter(None, path)), **mode}


def _groups(run: Run) -> list[list[str]]:
    """The names of all cases, of each test function together."""
    chosen = _FEW if run.rehearse else (str(CASES),)
    found = subprocess.run(
        [*pytest_command(run.rehearse), "--collect-only", *chosen],
        cwd=ROOT, env=environment(run.rehearse), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if found.returncode != 0:
        raise RuntimeError("the cases cannot be collected: " + (found.stdout + found.stderr)[-1500:])
    groups = defaultdict(list)
    for name in found.stdout.splitlines():
        if "::" in name and run.match in name:
            groups[name.split("[")[0]].append(name)
    return list(groups.values())


def _run_group(run: Run, names: list[str], lock: threading.Lock) -> bool:
    """Whether all of these cases have a line now."""
    while missing := [name for name in names if not run.has(name)]:
        if run.seconds_left <= 0:
            return False
        code, said = _pytest(run, missing, lock)
        if code is None:
            return False
        still = [name for name in names if not run.has(name)]
        if still and len(still) == len(missing):
            # The first of them ended the process before it had a result.
            error = f"its process ended with {code}: {said[-500:]}"
            with lock:
                run.add(still[0], [Result("passed", None, error=error)])
    return True


def _pytest(run: Run, names: list[str], lock: threading.Lock) -> tuple[int | None, str]:
    """Adds a line for each case as it ends. The exit code, None where the time was over, and what pytest said."""
    read, write = os.pipe()
    process = subprocess.Popen(
        [*pytest_command(run.rehearse), *names], cwd=ROOT, pass_fds=[write], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**environment(run.rehearse), "PENSTOCK_CASE_LINES": str(write)},
    )  # fmt: skip
    os.close(write)
    said: list[str] = []
    assert process.stdout is not None
    output = process.stdout
    listener = threading.Thread(target=lambda: said.append(output.read()), daemon=True)
    listener.start()
    over = threading.Timer(max(run.seconds_left, 0.1), process.kill)
    over.start()
    with os.fdopen(read) as lines:
        for line in lines:
            name, outcome, seconds, text = json.loads(line)
            with lock:
                run.add(name, [_result(outcome, seconds, text)])
    code = process.wait()
    over.cancel()
    listener.join()
    return (None if run.seconds_left <= 0 else code), "".join(said)


def _result(outcome: str, seconds: float, text: str) -> Result:
    if outcome == "passed":
        return Result(outcome, seconds, "s")
    return Result(outcome, None, note=text) if outcome == "skipped" else Result(outcome, None, error=text)
