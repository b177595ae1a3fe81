"""The input of a suite, and its results."""

import os
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-peers" / "bin" / "python"
TIMEOUT_S = 900


@dataclass(frozen=True)
class Served:
    """A running server of the demo model."""

    url: str
    model_id: str
    model_path: Path


@dataclass
class Found:
    """The results of one suite: how much ran and passed, and why the rest did not, with how often."""

    suite: str
    version: str
    run: int = 0
    passed: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def note(self, passed: bool, reason: str) -> None:
        """Counts one case; `reason` is for one that failed."""
        self.run += 1
        self.passed += passed
        if not passed:
            self.reasons[reason] += 1


def run(command: list[str], cwd: Path, *, may_fail: bool = False, **environment: str) -> None:
    """Runs a command of the peers' environment. One that may fail has failing cases, which its caller counts."""
    done = subprocess.run(
        [str(PYTHON), *command],
        cwd=cwd,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(cwd / "hf"), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
    )
    if done.returncode and not may_fail:
        raise RuntimeError(f"{command[:3]} ended with {done.returncode}:\n{done.stdout[-2000:]}")


def version(package: str) -> str:
    """The version of a package of the peers' environment."""
    folders = [str(path) for path in PYTHON.parents[1].glob("lib/python*/site-packages")]
    found = next(iter(metadata.distributions(name=package, path=folders)))
    return found.version
