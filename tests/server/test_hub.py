"""Models of the hub, from a fake one on localhost: what is fetched, what is taken up again, and how it is refused."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from fake_hub import COMMIT, TOKEN, FakeHub, running_hub

MODEL = "org/model"
# More than two reads of the client, which are of 10 MB.
WEIGHTS = os.urandom(24 << 20)
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"pickle",
    "modeling_custom.py": b"code",
    "original/consolidated.safetensors": b"a copy",
    "consolidated.safetensors": b"a copy",
}


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with running_hub() as hub:
        hub.repositories[MODEL] = dict(FILES)
        yield hub


class Result(NamedTuple):
    """The results of a process."""

    code: int
    folder: Path | None
    stderr: str

    @property
    def error(self) -> str:
        """Its only line that is an error."""
        (line,) = [line for line in self.stderr.splitlines() if line.startswith("error: ")]
        return line


def resolve(hub: FakeHub, home: Path, *flags: str, **environment: str) -> Result:
    known = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), **environment}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "penstock_server.resolve", *flags],
        env={**known, **settings}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    folder = Path(json.loads(lines[-1])["folder"]) if lines else None
    return Result(done.returncode, folder, done.stderr)


def test_a_model_is_fetched_without_pickles_code_and_copies(hub: FakeHub, tmp_path: Path) -> None:
    found = resolve(hub, tmp_path, MODEL)
    assert found.code == 0, found.stderr
    assert found.folder is not None
    assert sorted(file.name for file in found.folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert (found.folder / "model.safetensors").read_bytes() == WEIGHTS
    assert found.folder.is_relative_to(tmp_path)


def test_what_is_there_is_not_fetched_again(hub: FakeHub, tmp_path: Path) -> None:
    first = resolve(hub, tmp_path, MODEL)
    second = resolve(hub, tmp_path, MODEL)
    assert (second.code, second.folder) == (0, first.folder)
    assert hub.fetched("model.safetensors") == [None]
    offline = resolve(hub, tmp_path, MODEL, HF_HUB_OFFLINE="1", HF_ENDPOINT="http://127.0.0.1:9")
    assert offline.folder == first.folder


def test_a_broken_connection_is_taken_up_where_it_broke(hub: FakeHub, tmp_path: Path) -> None:
    hub.breaks["model.safetensors"] = 15 << 20
    found = resolve(hub, tmp_path, MODEL)
    assert found.code == 0, found.stderr
    assert found.folder is not None
    assert (found.folder / "model.safetensors").read_bytes() == WEIGHTS
    whole, rest = hub.fetched("model.safetensors")
    assert whole is None
    assert rest is not None
    assert 0 < int(rest.removeprefix("bytes=").rstrip("-").split("-")[0]) <= 15 << 20


def test_progress_is_reported(hub: FakeHub, tmp_path: Path) -> None:
    assert "%" in resolve(hub, tmp_path, MODEL).stderr


def test_a_revision_is_fetched_by_its_commit(hub: FakeHub, tmp_path: Path) -> None:
    found = resolve(hub, tmp_path, MODEL, f"--revision={COMMIT}")
    assert found.folder is not None
    assert found.folder.name == COMMIT


def test_a_missing_revision_is_one_line(hub: FakeHub, tmp_path: Path) -> None:
    refused = resolve(hub, tmp_path, MODEL, "--revision=v9")
    assert (refused.code, refused.error) == (1, f"error: {MODEL} has no revision v9")


def test_a_missing_model_is_one_line(hub: FakeHub, tmp_path: Path) -> None:
    refused = resolve(hub, tmp_path, "org/other")
    assert refused.code == 1
    assert refused.error.startswith(
        "error: org/other is neither a folder here nor a model on the Hugging Face Hub"
    )


@pytest.mark.parametrize("token", ["", "hf_wrong"])
def test_a_gated_model_names_what_opens_it(hub: FakeHub, tmp_path: Path, token: str) -> None:
    hub.gated.add(MODEL)
    refused = resolve(hub, tmp_path, MODEL, HF_TOKEN=token)
    assert refused.code == 1
    assert refused.error == (
        f"error: {MODEL} is gated: ask for access on its page on the Hugging Face Hub and set HF_TOKEN"
    )
    assert hub.fetched("model.safetensors") == []


def test_a_token_opens_a_gated_model(hub: FakeHub, tmp_path: Path) -> None:
    hub.gated.add(MODEL)
    assert resolve(hub, tmp_path, MODEL, HF_TOKEN=TOKEN).code == 0


def test_pickles_are_refused_before_anything_is_downloaded(hub: FakeHub, tmp_path: Path) -> None:
    del hub.repositories[MODEL]["model.safetensors"]
    del hub.repositories[MODEL]["consolidated.safetensors"]
    del hub.repositories[MODEL]["original/consolidated.safetensors"]
    refused = resolve(hub, tmp_path, MODEL)
    assert refused.code == 1
    assert "holds pickled weights only" in refused.error
    assert f"M.from_pretrained('{MODEL}').save_pretrained('model')" in refused.error
    assert all(path.startswith("/api/") for _method, path, _range in hub.requests)


def test_a_hub_out_of_reach_is_one_line(hub: FakeHub, tmp_path: Path) -> None:
    refused = resolve(hub, tmp_path, MODEL, HF_ENDPOINT="http://127.0.0.1:9")
    assert refused.code == 1
    assert "is not in the cache, and the Hugging Face Hub cannot be reached" in refused.error
