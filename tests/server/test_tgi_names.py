"""`text-generation-server`, the third name of TGI: what it hands to the launcher, and what it refuses."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "launcher" / "data" / "scripts" / "text-generation-server"


@pytest.fixture
def command(tmp_path: Path) -> Path:
    """The script as it is installed, beside a launcher that tells what it was asked."""
    launcher = tmp_path / "launcher"
    launcher.write_text('#!/bin/sh\nfor argument in "$@"; do echo "$argument"; done\n')
    os.chmod(launcher, 0o755)
    return Path(shutil.copy(SCRIPT, tmp_path))


def run(command: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(command), *arguments], capture_output=True, text=True, timeout=20)


@pytest.mark.parametrize(
    ("arguments", "resolved"),
    [
        (["org/model"], ["--", "org/model"]),
        (["org/model", "--revision", "v 1"], ["--revision=v 1", "--", "org/model"]),
        (["--revision=v1", "org/model"], ["--revision=v1", "--", "org/model"]),
        (["--extension", ".bin", "org/model", "--no-auto-convert", "--json-output"], ["--", "org/model"]),
        (["--logger-level=DEBUG", "a folder", "--trust-remote-code"], ["--", "a folder"]),
    ],
)
def test_a_model_is_downloaded_by_the_launcher(
    command: Path, arguments: list[str], resolved: list[str]
) -> None:
    done = run(command, "download-weights", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["download", *resolved]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "org/model", "--sharded"], "launcher --model-id MODEL starts a server"),
        (["quantize", "org/model", "out"], "no command 'quantize'"),
        ([], "no command ''"),
        (["download-weights"], "needs a model: MODEL [--revision R]"),
        (["download-weights", "org/model", "--merge-lora"], "has no flag --merge-lora here"),
    ],
)
def test_what_is_not_there_is_said_on_one_line(command: Path, arguments: list[str], message: str) -> None:
    done = run(command, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
