"""The code in C for vectors of 16 numbers, where the processor has none: the tests of the ops in C, run once more with
a library in which plain C stands in for AVX-512 (`emulated/avx512.h`). It says nothing of speed, nor of AMX.
"""

import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import penstock_kernels
import pytest
from penstock_kernels.native.library import library

_FOLDER = Path(__file__).parent
_FILES = sorted(_FOLDER.glob("test_native*.py"))
# Tiles are those of AMX, and rows of int16 are in tests of their own, too.
_CHOSEN = "not in_tiles and not (same_bits_in_any_batch and int16)"
# Optimised as little as possible: most of the time is the compiler's.
_COMPILE = [
    "-O1",
    "-std=gnu11",
    "-fPIC",
    "-pthread",
    "-Wno-psabi",
    "-w",
    "-mavx2",
    "-mfma",
    "-mf16c",
    "-mbmi2",
]


def _is_x86() -> bool:
    return platform.machine() == "x86_64" and "avx2" in Path("/proc/cpuinfo").read_text()


pytestmark = [
    pytest.mark.skipif(library() is None, reason="there is no compiler"),
    pytest.mark.skipif(not _is_x86(), reason="what stands in needs AVX2"),
]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package of kernels whose library emulates AVX-512."""
    folder = tmp_path_factory.mktemp("emulated")
    source = Path(penstock_kernels.__file__).parent
    package = folder / source.name
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__", "_native.so"))
    files = sorted((package / "native" / "src").glob("*.c"))
    objects = [str(folder / f"{file.stem}.o") for file in files]
    compiler = os.environ.get("CC", "cc")
    before = ["-include", str(_FOLDER / "emulated" / "avx512.h")]
    commands = [
        [compiler, *_COMPILE, *before, "-c", str(file), "-o", made]
        for file, made in zip(files, objects, strict=True)
    ]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(partial(subprocess.run, check=True), commands))
    link = [compiler, "-shared", "-pthread", *objects, "-o", str(package / "_native.so"), "-lm"]
    subprocess.run(link, check=True)
    return folder


def test_ops_are_right_in_vectors_of_16_numbers(emulated: Path) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-p", "timeout", "-p", "hypothesispytest", "-k", _CHOSEN]
    command = [sys.executable, "-m", "pytest", *options, *map(str, _FILES)]
    env = {**os.environ, "PYTHONPATH": str(emulated), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    run = subprocess.run(
        command, cwd=_FOLDER.parents[1], env=env, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-1000:]
    assert " passed" in run.stdout
