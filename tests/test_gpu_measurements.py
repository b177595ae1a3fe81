"""The GPU measurements are tried on the CPU, in tiny sizes, so that only the numbers differ on a GPU."""

import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from contextlib import suppress
from importlib import metadata
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.gpu import pack, report
from benchmarks.gpu.child import measure, note_death
from benchmarks.gpu.lines import Line, Lines, Origin, Result, Task, read
from benchmarks.gpu.once import Once
from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.run import Begun, Run

_ROOT = Path(__file__).parents[1]
_MODULE = [sys.executable, "-m", "benchmarks.gpu", "--rehearse"]
_FIELDS: dict[str, Any] = {
    "device": str, "commit": str, "rehearsal": bool, "date": str, "part": int, "name": str, "by": str, "what": str,
    "value": (int, float, type(None)), "unit": str, "floor": (int, float, type(None)), "note": str, "error": str,
}  # fmt: skip
H100 = Origin("NVIDIA H100", "abc123", False)


def _rehearse(out: Path, *arguments: str) -> None:
    run = subprocess.run(
        [*_MODULE, f"--out={out}", *arguments], cwd=_ROOT, capture_output=True, text=True, timeout=280, check=False
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]


def _is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def _kill_in_the_middle(out: Path) -> None:
    """Starts part 1, and kills the command when some tasks are measured; its child ends then."""
    with subprocess.Popen(
        [*_MODULE, f"--out={out}", "1"], cwd=_ROOT, stdout=subprocess.PIPE, text=True
    ) as command:
        assert command.stdout is not None
        while not command.stdout.readline().startswith("1 import google.protobuf"):
            assert command.poll() is None
        [child] = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()
        command.kill()
    while _is_running(int(child)):
        time.sleep(0.05)


class Rehearsal:
    """The folder of a rehearsal that was killed and continued, and its lines at both times."""

    def __init__(self, out: Path) -> None:
        self.out = out
        _kill_in_the_middle(out)
        self.before = (out / "lines.jsonl").read_text().splitlines()
        _rehearse(out, "1", "4", "5")
        # In this process, which has imported already what most of its time would go to.
        measure(Run(6, out, True, 280))
        _rehearse(out, "--match=embedding", "2")
        _rehearse(out, "--match=2 x 1 tokens", "3")
        _rehearse(out, "--match=tiny, by a head of EAGLE, trees", "7")
        self.after = (out / "lines.jsonl").read_text().splitlines()
        self.lines: list[dict[str, Any]] = [json.loads(line) for line in self.after]

    def names(self, part: int) -> set[str]:
        return {line["name"] for line in self.lines if line["part"] == part}


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    return Rehearsal(tmp_path_factory.mktemp("rehearsal"))


@pytest.mark.timeout(400)
def test_every_line_says_what_was_measured_where(rehearsal: Rehearsal) -> None:
    for line in rehearsal.lines:
        assert line.keys() == _FIELDS.keys()
        assert all(isinstance(line[name], kind) for name, kind in _FIELDS.items()), line
        assert line["rehearsal"]
        assert line["error"] == ""
        assert line["value"] is not None or line["note"]
    assert {line["part"] for line in rehearsal.lines} == set(PARTS)
    assert len({(line["device"], line["commit"]) for line in rehearsal.lines}) == 1


@pytest.mark.timeout(400)
def test_a_kill_loses_no_line_and_the_next_run_measures_what_is_missing(rehearsal: Rehearsal) -> None:
    assert len(rehearsal.before) >= 4
    assert rehearsal.after[: len(rehearsal.before)] == rehearsal.before
    keys = [(line["part"], line["name"], line["by"], line["what"]) for line in rehearsal.lines]
    assert len(keys) == len(set(keys))


@pytest.mark.timeout(400)
def test_every_part_measures_what_it_is_for(rehearsal: Rehearsal) -> None:
    assert {
        "machine",
        "import grpc",
        "start launcher",
        "best rates",
        "compile rms_norm 4096",
    } <= rehearsal.names(1)
    assert "variants of tiny, graphs" in rehearsal.names(1)
    assert any(name.startswith("compile _") for name in rehearsal.names(1))
    assert any("test_embedding" in name for name in rehearsal.names(2))
    assert rehearsal.names(3) == {"delta rule, 2 x 1 tokens", "delta rule by rows, 2 x 1 tokens"}
    engines = ("graphs", "chained", "fp8 cache", "no graphs")
    steps = [f"tiny, {engine}: decode {streams} x 64" for engine in engines for streams in (1, 4)]
    assert {*steps, "tiny, graphs: bare graph of 1", "tiny, graphs: prompt of 64"} <= rehearsal.names(4)
    assert "tiny, as it comes: 2 clients, 32 to 8" in rehearsal.names(5)
    assert {"torch.profiler", "nsys", "compute-sanitizer memcheck"} <= rehearsal.names(6)
    assert rehearsal.names(7) == {"tiny, by a head of EAGLE, trees, answers, 2 streams"}
    drafts = {line["what"]: line for line in rehearsal.lines if line["part"] == 7}
    assert drafts["times the rate without drafts"]["value"] > 0
    assert drafts["rate"]["note"].endswith(" without drafts")
    assert 0 < drafts["drafts right"]["value"] <= 100
    floors = [line["floor"] for line in rehearsal.lines if line["part"] in (3, 4) and line["what"] == "step"]
    assert floors
    assert all(floor > 0 for floor in floors)
    rivals = {line["by"] for line in rehearsal.lines if line["part"] == 3}
    assert rivals == {"penstock", "PyTorch in chunks", "flash-linear-attention"}


@pytest.mark.timeout(400)
def test_a_page_and_a_picture_lie_beside_the_lines(rehearsal: Rehearsal) -> None:
    page = (rehearsal.out / "report.md").read_text()
    assert page.startswith("## On a GPU: CPU (rehearsal)\n")
    assert "| tiny, graphs: decode 4 x 64 | step |  |" in page
    assert ElementTree.parse(rehearsal.out / "shares.svg").getroot().tag.endswith("svg")
    with pytest.raises(ValueError, match="one run on one GPU"):
        report.publish(rehearsal.out / "lines.jsonl", rehearsal.out)


# One part in one process


class _Stub:
    """A part of two tasks."""

    def measure(self, run: Run) -> None:
        for name in ("first", "second"):
            run.measure(name, lambda: [Result("time", 1.0, "us")])


def test_what_was_begun_before_a_kill_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PARTS, 9, _Stub())
    Begun(tmp_path, 9).write(Task(9, "first", "penstock"))
    measure(Run(9, tmp_path, True, 60))
    assert [line.task.name for line in read(tmp_path / "lines.jsonl")] == ["second", "first"]


def test_what_ended_its_process_has_a_line(tmp_path: Path) -> None:
    Begun(tmp_path, 4).write(Task(4, "crash", "penstock"))
    note_death(Run(4, tmp_path, True, 60), -11)
    [line] = read(tmp_path / "lines.jsonl")
    assert line.task.name == "crash"
    assert line.result.error == "its process ended with -11"


def test_an_error_is_a_line_and_the_rest_goes_on(tmp_path: Path) -> None:
    run = Run(9, tmp_path, True, 60)
    costly = Once(lambda: 1 / 0)
    for name in ("one", "other"):
        run.measure(name, lambda: [Result("time", costly())])
    run.measure("third", lambda: [Result("time", 1.0)])
    errors = [line.result.error for line in read(run.lines.path)]
    assert errors[0].startswith("ZeroDivisionError: division by zero (test_gpu_measurements.py:")
    assert errors[1].startswith("RuntimeError: as before: division by zero")
    assert errors[2] == ""


# Lines and the report


def _line(name: str, value: float | None, unit: str = "us", floor: float | None = None, **more: Any) -> Line:
    part = more.pop("part", 3)
    return Line(H100, "2026-11-22", Task(part, name, "penstock"), Result("time", value, unit, floor, **more))


def test_a_line_that_was_cut_off_harms_no_other(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "lines.jsonl")
    lines.append([_line("first", 1.0)])
    whole = lines.path.read_text()
    lines.path.write_text(whole + whole[:40])
    lines.append([_line("second", 2.0)])
    assert [line.task.name for line in lines.read()] == ["first", "second"]


def test_a_share_is_of_the_floor_for_times_and_for_rates() -> None:
    assert Result("time", 8.0, "us", 4.0).share == 0.5
    assert Result("rate", 4.0, "tokens/s", 8.0).share == 0.5
    assert Result("errors", 0, floor=0).share is None


def test_a_run_on_a_gpu_becomes_a_section(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "lines.jsonl")
    lines.append([_line("decode 64 x 4096", 9.0, floor=4.0), _line("decode 64 x 4096", 8.0, floor=4.0)])
    lines.append([_line("draw", None, error="RuntimeError: CUDA error"), _line("case", 2.0, "s", part=2)])
    kept = report.publish(lines.path, tmp_path / "results")
    assert kept.name == "nvidia-h100.jsonl"
    [section] = report.sections(read(kept))
    assert section.startswith("## On a GPU: NVIDIA H100\n\n2026-11-22 · commit abc123\n")
    assert "| decode 64 x 4096 | time |  | 8 us | 4 us | 50% |  |" in section
    assert "1 of 2 without an error." in section
    assert "- draw: `RuntimeError: CUDA error`" in section
    assert "1 of 1 without an error." in section


# The archive


def _wheel(folder: Path, name: str, files: dict[str, int]) -> Path:
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        for file, mode in files.items():
            entry = zipfile.ZipInfo(file)
            entry.external_attr = mode << 16
            archive.writestr(entry, "")
    return path


def test_wheels_are_unpacked_by_version_of_python(tmp_path: Path) -> None:
    wheels = [
        _wheel(tmp_path, "one-1.0-cp312-cp312-manylinux2014_x86_64.whl", {"one/core.so": 0o755}),
        _wheel(tmp_path, "two-1.0-cp39-abi3-manylinux_2_31_x86_64.whl", {"two.py": 0o644, "two.html": 0o644}),
        _wheel(tmp_path, "three-1.0-py3-none-any.whl", {"three.py": 0o644}),
    ]
    assert pack.unpack_wheels(wheels, tmp_path / "carried") == [wheel.name for wheel in wheels]
    found = {str(path.relative_to(tmp_path / "carried")) for path in tmp_path.glob("carried/*/**/*.*")}
    assert found == {"cp312/one/core.so", "any/two.py", "any/three.py"}
    assert os.access(tmp_path / "carried/cp312/one/core.so", os.X_OK)


def test_recorded_variants_are_carried_but_of_kernels_that_are_gone(tmp_path: Path) -> None:
    kernel = ["penstock_kernels.gpu.noise", "_noise_kernel", [["x_ptr", "*fp32"]], [], [], []]
    (tmp_path / "cases.txt").write_text(json.dumps(kernel) + "\n")
    target = tmp_path / "carried" / "variants.txt"
    assert pack.save_variants(tmp_path, target) == 0
    assert not target.exists()
    from kernel_variants.recorder import read, recording_only, write
    from penstock_kernels import silu_mul

    with recording_only() as seen:
        silu_mul(torch.zeros(2, 80))
    write(seen, tmp_path / "served-1.txt")
    assert pack.save_variants(tmp_path, target) == 1
    assert set(read(target)) == seen


# Python loads it first: what a bare machine lacks and nobody carries cannot be imported.
_BARE = """
import sys

class Missing:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing)
"""


def _missing_on_a_bare_machine() -> set[str]:
    """Modules of this environment that come neither with torch nor in the archive."""
    there, left = {"numpy", "penstock", "penstock-kernels"}, ["torch", *pack.CARRIED]
    while left:
        name = canonicalize_name(left.pop())
        if name not in there:
            there.add(name)
            with suppress(PackageNotFoundError):
                needed = map(Requirement, metadata.requires(name) or [])
                left += [it.name for it in needed if it.marker is None or it.marker.evaluate({"extra": ""})]
    found = metadata.packages_distributions().items()
    return {module for module, names in found if there.isdisjoint(map(canonicalize_name, names))}


@pytest.mark.timeout(200)
def test_the_script_runs_the_packed_tree(tmp_path: Path) -> None:
    """Where nothing is installed but torch and numpy: all cases of part 2 are collected."""
    tree, checkout = tmp_path / "made" / "penstock", tmp_path / "checkout"
    pack.copy_sources(_ROOT, tree)
    (tree / "carried" / "bin").mkdir(parents=True)
    size = pack.write_archive(
        tree, {"commit": "packed", "wheels": ["some.whl"]}, checkout / "target" / pack.ARCHIVE.name
    )
    assert 0 < size < pack.MOST_BYTES
    (checkout / "benchmarks").mkdir()
    shutil.copy(_ROOT / "benchmarks" / "gpu.sh", checkout / "benchmarks")
    (tmp_path / "sitecustomize.py").write_text(_BARE.format(missing=_missing_on_a_bare_machine()))
    places = {
        "PYTHON": sys.executable,
        "PENSTOCK_GPU_TREE": str(tmp_path / "unpacked"),
        "PYTHONPATH": str(tmp_path),
    }
    command = ["bash", str(checkout / "benchmarks" / "gpu.sh"), f"--out={tmp_path / 'out'}", "--rehearse"]
    subprocess.run(
        [*command, "--match=machine", "1", "2"],
        env={**os.environ, **places},
        cwd=checkout,
        check=True,
        timeout=180,
    )
    [line] = read(tmp_path / "out" / "lines.jsonl")
    assert line.origin.commit == "packed"
    assert "some.whl" in line.result.note
    [unpacked] = (tmp_path / "unpacked").glob("*/penstock")
    command = [str(unpacked / "carried/bin/python"), "-c", "import sys; print(sys.executable)"]
    python = subprocess.run(command, capture_output=True, text=True, check=True)
    assert python.stdout.strip() == sys.executable
