"""Compiles the ops in C when the wheel is built. Where there is no compiler, the wheel is made without them."""

import os
import shutil
import subprocess
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_SOURCES = Path(__file__).parent / "penstock_kernels" / "native" / "src"
_COMPILE = (
    "-O3",
    "-std=gnu11",
    "-fPIC",
    "-pthread",
    "-Wall",
    "-Wextra",
    "-Wno-psabi",
    "-Wno-unused-function",
    "-c",
)


class CompileHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds `_native.so` to the wheel, which is then for one platform and any Python."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="penstock-kernels-")
        try:
            library = _compile(Path(self.folder.name))
        except (OSError, subprocess.CalledProcessError) as error:
            self.app.display_warning(f"penstock-kernels is built without its ops in C: {error}")
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["force_include"][str(library)] = "penstock_kernels/_native.so"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self.folder.cleanup()


def _compile(folder: Path) -> Path:
    compiler = os.environ.get("CC") or shutil.which("cc") or "gcc"
    made = [folder / f"{source.stem}.o" for source in sorted(_SOURCES.glob("*.c"))]
    sources = [str(_SOURCES / f"{part.stem}.c") for part in made]
    commands = [
        [compiler, *_COMPILE, source, "-o", str(part)] for source, part in zip(sources, made, strict=True)
    ]
    # As many at a time as there are cores: a few of them take most of the time.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        list(threads.map(partial(subprocess.run, check=True), commands))
    library = folder / "_native.so"
    subprocess.run([compiler, "-shared", "-pthread", *map(str, made), "-o", str(library), "-lm"], check=True)
    return library
