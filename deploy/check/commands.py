"""Runs programs of this machine."""

import os
import subprocess
import sys
from pathlib import Path


class CommandError(Exception):
    """A program failed; the message has its command and the end of what it wrote."""


def run(*command: str | Path, env: dict[str, str] | None = None) -> str:
    """Runs the program and returns what it writes to stdout."""
    line = [str(part) for part in command]
    done = subprocess.run(line, env={**os.environ, **(env or {})}, capture_output=True, text=True)
    if done.returncode:
        raise CommandError(f"{' '.join(line)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def say(text: str) -> None:
    """A line of the report."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
