"""Which files one streaming chat request passes, compared with docs/life-of-a-request.md.

The router is compiled with counters of coverage, and a profiler counts the calls of the shard's Python functions. A
file is on the way if a function of it runs because of the second request to a server, and not while that is idle.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Self

from benchmarks import server
from benchmarks.way import python_calls
from benchmarks.way.page import PAGE, listed_files
from benchmarks.way.rust_counters import FLAGS, Counters, files_of_functions

ROOT = Path(__file__).parents[2]
_TARGET = ROOT / "target" / "release"
# All that is done now and then on an idle server is done at least once in that time.
_IDLE_S = 5.0
_SETTLES_S = 1.0
_BODY = {"messages": [{"role": "user", "content": "hello"}], "stream": True, "max_tokens": 16}
_OURS = re.compile(r"(penstock_server|penstock_kernels)/.*\.py(?=:)")
_HOME = {"penstock_server": "server", "penstock_kernels": "kernels"}


class _Reading(NamedTuple):
    rust: Counters
    python: Mapping[str, int]

    def run_since(self, before: Self) -> set[int | str]:
        """The functions that have run since then: hashes of Rust's, and files with line numbers of Python's."""
        python = {place for place, count in self.python.items() if count > before.python.get(place, 0)}
        return self.rust.since(before.rust) | python


def _file_of(function: int | str, files: Mapping[int, str]) -> str | None:
    """Below the root; None for that of a library."""
    if isinstance(function, str):
        found = _OURS.search(function)
        return found and f"{_HOME[found[1]]}/{found[0]}"
    file = files.get(function, "/").removeprefix(f"{ROOT}/")
    return None if Path(file).is_absolute() else file


def measured() -> set[str]:
    """The files on the way, but for those of the endpoint, which has no counters."""
    with tempfile.TemporaryDirectory() as name:
        tmp = Path(name)
        router = _built(tmp)
        variables = {
            python_calls.FOLDER: name,
            "PYTHONPATH": name,
            "LLVM_PROFILE_FILE": str(tmp / "%p%c.profraw"),
        }
        server.BIN = tmp
        with server.Server(**variables) as served:
            served.post("/v1/chat/completions", _BODY | {"stream": False})
            readings = []
            for ask in (False, False, True):
                if ask:
                    _stream(served)
                time.sleep(_SETTLES_S if ask else _IDLE_S)
                python = max(tmp.glob("*.json"), key=lambda file: file.stat().st_size)
                readings.append(_Reading(Counters.read(tmp), json.loads(python.read_text())))
        files = files_of_functions(router)
        idle, way = (after.run_since(before) for before, after in pairwise(readings))
        return {file for function in way - idle if (file := _file_of(function, files))}


def _stream(served: server.Server) -> None:
    host, port = served.address
    command = ["curl", "-sN", f"http://{host}:{port}/v1/chat/completions", "--json", json.dumps(_BODY)]
    subprocess.run(command, check=True, capture_output=True)


def _built(tmp: Path) -> Path:
    """A folder of programs: the launcher, the router with counters, and a Python that counts."""
    # At the same place every time: cargo compiles again with another one.
    wrapper = ROOT / "target" / "rustc-with-counters"
    wrapper.write_text(f'#!/bin/sh\nexec "$@" {" ".join(FLAGS)}\n')
    wrapper.chmod(0o755)
    environment = {**os.environ, "RUSTC_WORKSPACE_WRAPPER": str(wrapper), "LLVM_PROFILE_FILE": os.devnull}
    quick = "profile.release.package.penstock-router.opt-level=0"
    command = ["cargo", "build", "--release", "--locked", "--bin=penstock-router", f"--config={quick}"]
    subprocess.run(command, check=True, env=environment, cwd=ROOT)
    router = shutil.copy(_TARGET / "penstock-router", tmp)
    shutil.copy(server.BIN / "launcher", tmp)
    python = tmp / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    shutil.copy(python_calls.__file__, tmp / "sitecustomize.py")
    return Path(router)


def main() -> int:
    way = measured()
    known = {file for file in listed_files(PAGE.read_text()) if not file.startswith("endpoint/")}
    print(f"{len(way)} files")
    for what, files in (("not on the page", way - known), ("on the page only", known - way)):
        print(f"{what}: {len(files)}", *sorted(files), sep="\n  ")
    return int(way != known)


sys.exit(main())
