"""Another project's server as a process on a free port, with one thread per core."""

import os
import socket
import subprocess
import tempfile
import time
import urllib.request
from types import TracebackType
from typing import Protocol, Self

THREADS = len(os.sched_getaffinity(0))
_START_TIMEOUT_S = 180.0


class Running(Protocol):
    """A running server."""

    address: tuple[str, int]


class DidNotStart(RuntimeError):
    """It has ended, or takes too long."""


class Rival:
    """Starts the server and waits until `/health` returns success. Leaving the context stops it."""

    def __init__(self, *command: str) -> None:
        self.address = ("127.0.0.1", _free_port())
        host, port = self.address
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(THREADS)}
        self._process = subprocess.Popen(
            [*command, "--host", host, "--port", str(port)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def __enter__(self) -> Self:
        started = time.monotonic()
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > started + _START_TIMEOUT_S:
                self._process.kill()
                raise DidNotStart(f"a server did not start:\n{self._log_tail()}")
            time.sleep(0.1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _is_ready(self) -> bool:
        host, port = self.address
        try:
            with urllib.request.urlopen(f"http://{host}:{port}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _log_tail(self) -> str:
        self._log.seek(0)
        return self._log.read()[-4000:]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def url(running: Running) -> str:
    host, port = running.address
    return f"http://{host}:{port}"
