"""Packs what a bare machine needs into one archive: `python -m benchmarks.gpu.pack` (`make gpu-pack`).

In it are the sources, the programs and the op in C that were built here, wheels of what a shard and the tests import,
unpacked, tiny models that the tests would have made with transformers, and which variants of kernels the last `make
test` launched, if it was run. torch, Triton and Python are the machine's.
"""

import argparse
import json
import os
import platform
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import penstock_kernels

from benchmarks.gpu.origin import ROOT, commit_of

ARCHIVE = ROOT / "target" / "penstock-gpu.tar.gz"
# The most bytes that a machine takes from a checkout besides the tree.
MOST_BYTES = 64 * 2**20
PYTHONS = ("3.11", "3.12", "3.13")
# In the versions of this environment. Those without a version of Python in their names are for all of them.
_NEEDED = ("grpcio", "grpcio-health-checking", "llguidance", "protobuf", "safetensors")
_NEEDED_BY_TESTS = (
    *("pytest", "pytest-timeout", "pluggy", "iniconfig", "packaging", "pygments"),
    *("hypothesis", "sortedcontainers"),
)
CARRIED = (*_NEEDED, *_NEEDED_BY_TESTS)
_PROGRAMS = ("launcher", "penstock-router", "penstock-bench")
_SOURCES = ("benchmarks", "demo", "kernels", "server", "tests", "pyproject.toml", "LICENSE")
_LEFT_OUT = (
    "tests/clients/",
    "tests/peers/",
    "tests/e2e/",
    "benchmarks/results/",
    "benchmarks/load/",
)
# The file name endings in wheels that are not needed to run them.
_BULK = (".html", ".pdf", ".pyi", ".h")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.pack", description=__doc__)
    parser.add_argument("--python", nargs="*", default=PYTHONS, help="versions that wheels are carried for")
    parser.add_argument(
        "--with", nargs="*", default=[], dest="extras", help="further wheels, such as fa3-fwd"
    )
    parser.add_argument(
        "--without-server", action="store_true", help="no programs and no gRPC: parts 1 to 4 and 6"
    )
    parser.add_argument("--out", type=Path, default=ARCHIVE)
    chosen = parser.parse_args()
    with TemporaryDirectory() as made:
        tree = Path(made) / "penstock"
        copy_sources(ROOT, tree)
        carried = tree / "carried"
        names = [f"{name}=={version(name)}" for name in CARRIED] + chosen.extras
        if chosen.without_server:
            names = [name for name in names if not name.startswith("grpcio")]
        else:
            copy_programs(Path(sys.executable).parent, carried / "bin")
        copy_library(tree)
        wheels = unpack_wheels(download(names, chosen.python, ROOT / "target" / "gpu-wheels"), carried)
        save_models(carried / "models")
        num_variants = save_variants(ROOT / "target" / "variants", carried / "variants.txt")
        manifest = {"commit": commit_of(ROOT), "wheels": wheels, "glibc": platform.libc_ver()[1]}
        size = write_archive(tree, manifest, chosen.out)
    print(f"{chosen.out}: {size / 2**20:.1f} MiB of the {MOST_BYTES / 2**20:.0f} that may be carried")
    print(f"  {num_variants} variants of kernels, from the last `make test`")
    for wheel in wheels:
        print(f"  {wheel}")
    return 0 if size <= MOST_BYTES else 1


def copy_sources(root: Path, tree: Path) -> None:
    """The files that git knows or does not ignore, as they are now."""
    command = [
        "git",
        "-C",
        str(root),
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
        *_SOURCES,
    ]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if not name.startswith(_LEFT_OUT) and (root / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, tree / name)


def copy_programs(source: Path, target: Path) -> None:
    """The launcher looks for the others, and for Python, in its own folder; `gpu.sh` puts Python there."""
    target.mkdir(parents=True)
    for name in _PROGRAMS:
        shutil.copy2(source / name, target / name)


def copy_library(tree: Path) -> None:
    """The op in C, if it was built."""
    library = Path(penstock_kernels.__file__).parent / "_native.so"
    if library.exists():
        shutil.copy2(library, tree / "kernels" / "penstock_kernels" / library.name)


def download(names: list[str], pythons: Iterable[str], folder: Path) -> list[Path]:
    """Wheels of these packages for these versions of Python, on this kind of processor."""
    shutil.rmtree(folder, ignore_errors=True)
    names_of_glibc = ("2014", "_2_17", "_2_24", "_2_28", "_2_31", "_2_34")
    platforms = [f"--platform=manylinux{name}_{platform.machine()}" for name in names_of_glibc]
    for python in pythons:
        options = [
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--only-binary=:all:",
            f"--dest={folder}",
        ]
        machine = ["--implementation=cp", f"--python-version={python}", *platforms]
        command = [sys.executable, "-m", "pip", "download", *options, *machine, *names]
        subprocess.run(command, check=True)
    return sorted(folder.glob("*.whl"))


def unpack_wheels(wheels: list[Path], carried: Path) -> list[str]:
    """Each into the folder of its version of Python, or of any. Returns their names."""
    for wheel in wheels:
        _, _, python, abi, _ = wheel.stem.rsplit("-", 4)
        folder = carried / (python if abi.startswith("cp") else "any")
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                if not entry.filename.endswith(_BULK) and not entry.is_dir():
                    path = Path(archive.extract(entry, folder))
                    path.chmod(0o755 if entry.external_attr >> 16 & stat.S_IXUSR else 0o644)
    return [wheel.name for wheel in wheels]


def save_models(folder: Path) -> None:
    """The models of `tests/kernels/cases/test_engine.py`, by the recipes in it."""
    from benchmarks.gpu.carried_models import folder_name

    sys.path += [str(ROOT / name) for name in ("tests", "tests/server", "tests/kernels/cases")]
    import test_engine  # type: ignore[import-not-found]
    import tiny_model

    recipes = [(family, options) for family, options, _ in (*test_engine.CASES, *test_engine.FP8_CASES)]
    for family, options in [*recipes, ("llama", {})]:
        tiny_model.save(folder / folder_name(family, options), tiny_model.TinyModel(family, options), "5GB")


def save_variants(recorded: Path, target: Path) -> int:
    """Those of kernels that still have the same parameters. Returns their number."""
    found = {line for path in recorded.glob("*.txt") for line in path.read_text().splitlines()}
    sys.path.append(str(ROOT / "tests"))
    from kernel_variants.variant import from_line

    kept = sorted(line for line in found if from_line(line).is_current())
    if kept:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("".join(f"{line}\n" for line in kept))
    return len(kept)


def write_archive(tree: Path, manifest: Mapping[str, object], out: Path) -> int:
    """Returns its size. gzip: every Python can read it."""
    carried = tree / "carried"
    carried.mkdir(exist_ok=True)
    (carried / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(out, "w:gz", compresslevel=9) as archive:
        archive.add(tree, tree.name, filter=_of_nobody)
    return os.stat(out).st_size


def _of_nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    sys.exit(main())
