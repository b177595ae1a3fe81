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

from benchmarks.compare.load import INPUT_LEN, LONG_INPUT_LEN, OUTPUT_LEN
from benchmarks.compare.rival import THREADS, Rival, Running
from benchmarks.server import Server

MOST_AT_ONCE = 32
RIVALS_PYTHON = Path(__file__).parents[2] / ".venv-rivals/bin/python"


class Contender(NamedTuple):
    """A server to compare; `flags` are the flags of `penstock-bench` that it needs.

    Servers of one `dtype` are compared with each other; `bits` are those of a weight, in layers and in the head.
    """

    name: str
    version: str
    start: Callable[[Path], AbstractContextManager[Running]]
    dtype: str = "float32"
    bits: tuple[float, float] = (32, 32)
    is_ours: bool = False
    flags: tuple[str, ...] = ("--ignore-eos",)
    # Whether its output in float32 must be equal to the others'.
    is_exact: bool = True
    # Where Penstock serves a type in more than one way: what is not as it comes.
    way: str = ""


class Absent(NamedTuple):
    """A server that cannot be measured on this machine, and the reason."""

    name: str
    reason: str


class Format(NamedTuple):
    """How weights are stored by us and by llama.cpp, in type and bits (see `Contender`); `flags` are ours.

    OpenVINO reads files of GGUF, too, but of other types.
    """

    dtype: str
    flags: tuple[str, ...]
    bits: tuple[float, float]
    of_gguf: str
    bits_of_gguf: tuple[float, float]
    of_openvino: str
    bits_of_openvino: tuple[float, float]


# OpenVINO's names of the data types.
_PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}
# The folders of the models do not outlive the run: what is made of them would only take room.
_NOT_KEPT = "--quantize-cache-gb=0"
# The bits of a weight include its share of the scales: we have one for a row or 128 weights, llama.cpp one for 32.
FORMATS = (
    Format("float32", ("--dtype=float32",), (32, 32), "F32", (32, 32), "F16", (16, 16)),
    Format("bfloat16", ("--dtype=bfloat16",), (16, 16), "BF16", (16, 16), "F16", (16, 16)),
    Format(
        "int8",
        ("--dtype=bfloat16", "--quantize=int8", _NOT_KEPT),
        (8.0, 16),
        "Q8_0",
        (8.5, 8.5),
        "Q8_0",
        (8.5, 8.5),
    ),
    Format(
        "int4",
        ("--dtype=bfloat16", "--quantize=int4", _NOT_KEPT),
        (4.13, 16),
        "Q4_0",
        (4.5, 8.5),
        "Q4_0",
        (4.5, 8.5),
    ),
)


def contenders(dtypes: tuple[str, ...] | None = None) -> list[Contender | Absent]:
    """All servers, or those of some types; Penstock first."""
    formats = [its for its in FORMATS if dtypes is None or its.dtype in dtypes]
    others = [_transformers()] if dtypes is None or "float32" in dtypes else []
    ours = [contender for its in formats for contender in _penstocks(its)]
    return [*ours, *others, *_llama_cpps(formats), *_openvinos(formats)]


def _penstocks(its: Format) -> list[Contender]:
    """Quantized weights also with what they are multiplied by rounded, as llama.cpp always does."""
    ways = {"": its.flags}
    if any(flag.startswith("--quantize=") for flag in its.flags):
        ways["rounded to int8"] = (*its.flags, "--cpu-activations=int8")
    return [_penstock(its, way, flags) for way, flags in ways.items()]


def _penstock(its: Format, way: str, flags: tuple[str, ...]) -> Contender:
    def start(model: Path) -> Server:
        return Server(f"--model-id={model}", *flags)

    name = f"Penstock {its.dtype}" + (f", {way}" if way else "")
    return Contender(name, version("penstock"), start, its.dtype, its.bits, is_ours=True, way=way)


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


def _llama_cpps(formats: list[Format]) -> list[Contender | Absent]:
    binary = os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")
    if binary is None:
        reason = "LLAMA_SERVER must name `llama-server`: benchmarks/compare/build_llama_cpp.sh"
        return [Absent("llama.cpp", reason)]
    its_version = _llama_cpp_version(binary)
    return [
        Contender(
            f"llama.cpp {its.of_gguf}",
            its_version,
            partial(_start_llama_cpp, binary, its.of_gguf),
            its.dtype,
            its.bits_of_gguf,
        )
        for its in formats
    ]


def _llama_cpp_version(binary: str) -> str:
    version = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"version: (.*)", version.stdout + version.stderr)
    return found[1] if found else "of an unknown version"


def _start_llama_cpp(binary: str, kind: str, model: Path) -> Rival:
    # Each slot has its share.
    context = MOST_AT_ONCE * (LONG_INPUT_LEN + OUTPUT_LEN)
    return Rival(
        *(binary, "--cont-batching", "--model", _gguf(model, kind), "--threads", str(THREADS)),
        *("--parallel", str(MOST_AT_ONCE), "--ctx-size", str(context)),
    )


def _gguf(model: Path, kind: str) -> str:
    """The model as a file of GGUF with matrices of this type."""
    from benchmarks.compare import gguf_file

    # Not beside the weights: a folder with such a file is served from it.
    file = model / "gguf" / f"{kind}.gguf"
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        gguf_file.write(model, file, kind)
    return str(file)


def _openvinos(formats: list[Format]) -> list[Contender | Absent]:
    """It has no server of its own, but for a program that has to be built: `openvino_server` is a thin one.

    Its answers are not compared: it reads no weights of 32 bits.
    """
    its_version = _openvino_version()
    if its_version is None:
        return [Absent("OpenVINO", "it is not in the environment of rivals: `make rivals`")]
    return [
        Contender(
            f"OpenVINO {its.dtype}",
            f"{its_version} in {_openvino_precision(its)}",
            partial(_start_openvino, its),
            its.dtype,
            its.bits_of_openvino,
            is_exact=False,
        )
        for its in formats
    ]


def _openvino_precision(its: Format) -> str:
    """The data type of sums and of the cache: with AVX2 alone OpenVINO refuses to start with bfloat16."""
    computes_bfloat16 = "avx512f" in Path("/proc/cpuinfo").read_text()
    return "bfloat16" if its.dtype != "float32" and computes_bfloat16 else "float32"


def _openvino_version() -> str | None:
    if not RIVALS_PYTHON.exists():
        return None
    program = "import importlib.metadata as it; print(it.version('openvino-genai'))"
    found = subprocess.run([RIVALS_PYTHON, "-c", program], capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else None


def _start_openvino(its: Format, model: Path) -> Rival:
    return Rival(
        *(str(RIVALS_PYTHON), str(Path(__file__).with_name("openvino_server.py"))),
        *("--model", _gguf(model, its.of_openvino), "--tokenizer", str(model / "tokenizer.json")),
        *("--precision", _PRECISIONS[_openvino_precision(its)], "--threads", str(THREADS)),
    )
