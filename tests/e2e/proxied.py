"""`penstock-router --upstream` as a process of its own."""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from e2e.launched import START_TIMEOUT_S, Server

_ROUTER = Path(sys.executable).parent / "penstock-router"
_LISTENING = "listening on "


class Proxied(Server):
    """A proxy on a free port over these servers. Use as a context manager; leaving it kills."""

    def __init__(self, upstreams: Sequence[Server], *flags: str) -> None:
        self.urls = [url_of(upstream) for upstream in upstreams]
        command = [str(_ROUTER), *(f"--upstream={url}" for url in self.urls), "--port=0", *flags]
        # Appended to, so that reading does not move where the process writes; closed on leaving.
        self._log = tempfile.TemporaryFile(mode="a+")  # noqa: SIM115
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith(_LISTENING), f"it did not start: {self.stderr}"
        host, port = line.removeprefix(_LISTENING).rsplit(":", 1)
        self.address = host, int(port)

    @property
    def stderr(self) -> str:
        """The text that it has written to stderr so far."""
        self._log.seek(0)
        return self._log.read()

    def metric(self, line: str) -> float:
        """The value of a metric, by its name with its labels."""
        lines = self.get("/metrics")[1].decode().splitlines()
        [value] = [text.removeprefix(f"{line} ") for text in lines if text.startswith(f"{line} ")]
        return float(value)

    def is_up(self, upstream: Server) -> bool:
        """Whether it gives requests to this server."""
        return self.metric(f'tgi_upstream_ready{{upstream="{url_of(upstream)}"}}') == 1

    def end(self) -> int:
        """Have it end as a supervisor does; its exit code."""
        self.process.terminate()
        return self.process.wait(START_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()


def url_of(server: Server) -> str:
    """The URL of a server, as a flag has it."""
    assert server.address
    return "http://{}:{}".format(*server.address)
