"""The measurement of the engine runs on a CPU too, so that it works when it meets a GPU."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

_ROOT = Path(__file__).parents[1]


@pytest.mark.timeout(300)
def test_the_script_measures_every_step_and_the_server(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu_engine",
        "--device=cpu",
        "--models=tiny",
        f"--out={tmp_path}",
    ]
    run = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    measured = json.loads((tmp_path / "gpu_engine.json").read_text())
    expected = ["decode, 1 x 64", "decode, 4 x 64", "bare graph of 1", "prompt, 64"]
    assert [row["what"] for row in measured["rows"]] == expected
    assert all(row["microseconds"] > 0 and row["floor_microseconds"] > 0 for row in measured["rows"])
    assert measured["served"][0]["tokens_per_second"] > 0
    assert "| tiny | decode, 4 x 64 |" in (tmp_path / "gpu_engine.md").read_text()
    assert ElementTree.parse(tmp_path / "gpu_engine.svg").getroot().tag.endswith("svg")
