"""`text-generation-server` and `text-generation-router`, names of TGI: what they start and what they refuse."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "launcher" / "data" / "scripts"


@pytest.fixture
def command(tmp_path: Path) -> Path:
    """The command of TGI's shards, as it is installed."""
    return install(tmp_path, "text-generation-server")


@pytest.fixture
def router(tmp_path: Path) -> Path:
    """TGI's router, as it is installed."""
    return install(tmp_path, "text-generation-router")


def install(folder: Path, name: str) -> Path:
    """The script in one folder with a launcher and a router that print their names and arguments."""
    for program in ("launcher", "penstock-router"):
        path = folder / program
        path.write_text('#!/bin/sh\nfor argument in "$@"; do echo "$argument"; done\n')
        os.chmod(path, 0o755)
    return Path(shutil.copy(SCRIPTS / name, folder))


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
        (["serve", "org/model", "--sharded"], "text-generation-launcher --model-id org/model --sharded\n"),
        (
            ["serve", "m", "--no-sharded", "--dtype", "float16", "--uds-path", "/x", "--max-input-tokens=9"],
            "text-generation-launcher --model-id m --sharded false --dtype float16 --max-input-tokens=9\n",
        ),
        (
            ["quantize", "org/model", "out"],
            "text-generation-launcher --quantize int4 quantizes while a model is read",
        ),
        ([], "no command ''"),
        (["download-weights"], "needs a model: MODEL [--revision R]"),
        (["download-weights", "org/model", "--merge-lora"], "has no flag --merge-lora here"),
    ],
)
def test_other_commands_are_refused_on_one_line(command: Path, arguments: list[str], message: str) -> None:
    done = run(command, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["serve", "--help"], ["download-weights", "-h"]])
def test_help_says_what_to_do(command: Path, arguments: list[str]) -> None:
    done = run(command, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert "text-generation-launcher --model-id MODEL" in done.stdout
    assert "check-tgi-args" in done.stdout


def test_the_arguments_of_the_router_are_explained(router: Path) -> None:
    done = run(router, "--max-concurrent-requests", "9", "--tokenizer-name", "org/model")
    assert (done.returncode, done.stdout) == (2, "")
    first, *explained = done.stderr.splitlines()
    assert first.startswith("error: ")
    assert "text-generation-launcher" in first
    assert explained == ["check-tgi-args", "--max-concurrent-requests", "9", "--tokenizer-name", "org/model"]


def test_the_router_answers_help_and_starts_for_shards_that_run(router: Path) -> None:
    done = run(router, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "text-generation-launcher --model-id MODEL" in done.stdout
    own = ["--model-id=m", "--shard-sockets", "/x"]
    assert run(router, *own).stdout.splitlines() == own
    assert run(router, "print-schema").stdout.splitlines() == ["--openapi"]
