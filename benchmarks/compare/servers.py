"""The servers that are compared: how each is started on a model folder."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from benchmarks.compare.load import INPUT_LEN, OUTPUT_LEN
from benchmarks.compare.rival import THREADS, Rival, Running
from benchmarks.server import Server

MOST_AT_ONCE = 16
RIVALS_PYTHON = Path(__file__).parents[2] / ".venv-rivals/bin/python"


class Contender(NamedTuple):
    """A server to compare; `flags` are the flags of `penstock-bench` that it needs."""

    name: str
    version: str
    start: Callable[[Path], AbstractContextManager[Running]]
    dtype: str = "float32"
    flags: tuple[str, ...] = ("--ignore-eos",)

    @property
    def is_exact(self) -> bool:
        """Whether its output must be equal to the others'."""
        return self.dtype == "float32"


class Absent(NamedTuple):
    """A server that cannot be measured on this machine, and the reason."""

    name: str
    reason: str


def contenders() -> list[Contender | Absent]:
    """All servers, Penstock first."""
    return [_penstock("float32"), _penstock("bfloat16"), _transformers(), _llama_cpp()]


def _penstock(dtype: str) -> Contender:
    def start(model: Path) -> Server:
        return Server(f"--model-id={model}", f"--dtype={dtype}")

    return Contender(f"Penstock {dtype}", version("penstock"), start, dtype)


def _transformers() -> Contender | Absent:
    """It refuses unknown fields, among them `ignore_eos`, which is not needed: the models have no end of sequence."""
    if not RIVALS_PYTHON.exists():
        return Absent("transformers", "its server needs packages of its own: `make rivals`")
    libraries = f"{version('transformers')} (torch {version('torch')})"
    return Contender("transformers", libraries, _start_transformers, flags=())


def _start_transformers(model: Path) -> Rival:
    block_len = 32
    num_blocks = 2 * MOST_AT_ONCE * (INPUT_LEN + OUTPUT_LEN) // block_len
    return Rival(
        *(str(RIVALS_PYTHON), "-m", "transformers.cli.transformers", "serve", str(model)),
        *("--continuous-batching", "--device=cpu", "--dtype=float32"),
        # Without a size it takes most of the free memory.
        *(f"--cb-block-size={block_len}", f"--cb-num-blocks={num_blocks}"),
    )


def _llama_cpp() -> Contender | Absent:
    binary = os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")
    if binary is None:
        return Absent(
            "llama.cpp", "LLAMA_SERVER must name `llama-server`: benchmarks/compare/build_llama_cpp.sh"
        )
    return Contender("llama.cpp", _llama_cpp_version(binary), partial(_start_llama_cpp, binary))


def _llama_cpp_version(binary: str) -> str:
    version = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"version: (.*)", version.stdout + version.stderr)
    return found[1] if found else "of an unknown version"


def _start_llama_cpp(binary: str, model: Path) -> Rival:
    from benchmarks.compare import gguf_file

    file = model / "model.gguf"
    gguf_file.write(model, file)
    context = MOST_AT_ONCE * 2 * (INPUT_LEN + OUTPUT_LEN)
    return Rival(
        *(binary, "--cont-batching", "--model", str(file), "--threads", str(THREADS)),
        *("--parallel", str(MOST_AT_ONCE), "--ctx-size", str(context)),
    )
