"""Says what a run measures: the device, the commit of the sources, and what was carried with them."""

import json
import subprocess
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.lines import Origin

ROOT = Path(__file__).parents[2]
# Made by `pack`; in a checkout it is not there.
CARRIED = ROOT / "carried"
_MANIFEST = CARRIED / "manifest.json"


def origin(rehearse: bool) -> Origin:
    """The origin of the lines of this process; a rehearsal measures the CPU."""
    device = "CPU (rehearsal)" if rehearse else torch.cuda.get_device_name()
    return Origin(device, commit(), rehearse)


def commit() -> str:
    """The commit of the packed tree or of this checkout, with a plus sign where files differ from it."""
    packed = manifest().get("commit")
    return str(packed) if packed else commit_of(ROOT)


def commit_of(root: Path) -> str:
    """The short name of a checkout's commit; "unknown" where there is no git."""
    try:
        name = _git(root, "rev-parse", "--short=10", "HEAD")
        return name + "+" * bool(_git(root, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def manifest() -> dict[str, Any]:
    """The manifest of the packed tree; empty in a checkout."""
    return dict(json.loads(_MANIFEST.read_text())) if _MANIFEST.exists() else {}


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
