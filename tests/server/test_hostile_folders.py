"""Corrupt and hostile folders are refused in one line that names file, tensor and reason, fast, and run no code."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hostile
import pytest
from driver import make_engine
from penstock_server.base.errors import StartError

# More than this and a test would be green by luck; the mutants are counted so that they stay several hundred.
FEWEST_MUTANTS = 300
# CPU time of this process: time that other programs take from a busy machine does not count.
LIMIT_S = 2.0
CODE = "from pathlib import Path\nPath('executed').touch()\n"


@pytest.fixture(scope="module")
def healthy(saved_model: Callable[..., Any]) -> Path:
    """The folder that mutants are made of."""
    folder: Path = saved_model(num_hidden_layers=2).folder
    return folder


def refusal(folder: Path) -> str:
    """The error message of a start, in-process: no signal can have killed it."""
    with pytest.raises(StartError) as refused:
        make_engine(folder)
    return str(refused.value)


def test_every_mutant_is_refused(healthy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_engine(healthy)
    mutants = hostile.mutants(healthy)
    assert len(mutants) >= FEWEST_MUTANTS
    monkeypatch.chdir(tmp_path)
    wrong: list[str] = []
    for number, (name, mutant) in enumerate(mutants.items()):
        folder = tmp_path / str(number)
        shutil.copytree(healthy, folder)
        (folder / "evil.py").write_text(CODE)
        mutant.spoil(folder)
        started = time.process_time()
        try:
            message = refusal(folder)
        except (Exception, pytest.fail.Exception) as error:
            wrong.append(f"{name}: {type(error).__name__}: {error}")
            continue
        finally:
            elapsed = time.process_time() - started
            shutil.rmtree(folder)
        if elapsed > LIMIT_S or "\n" in message or mutant.names not in message:
            wrong.append(f"{name}: {elapsed:.1f} s: {message}")
    assert not wrong, "\n".join(wrong)
    assert not (tmp_path / "executed").exists()


def test_huge_but_finite_weights_are_served(healthy: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(healthy, folder)
    header, data = hostile.read_header(folder)
    begin, end = header["model.norm.weight"]["data_offsets"]
    huge = b"\xff\xff\x7f\x7f" * ((end - begin) // 4)
    hostile.write_header(folder, header, data[:begin] + huge + data[end:])
    make_engine(folder)
