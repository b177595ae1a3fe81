"""A running launcher and all it started, as the tests see it: stderr, HTTP, signals, processes left over."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

_COMMAND = Path(sys.executable).parent / "launcher"
_SERVING = re.compile(r"Serving .* on https?://([\d.]+):(\d+)")
START_TIMEOUT_S = 90.0
# `make test-gpu` runs the same tests there.
_DEVICE = os.environ.get("PENSTOCK_TEST_DEVICE", "cpu")


def environment(tmp: Path) -> dict[str, str]:
    """The variables of a launcher with its run folder below `tmp`: the same in all tests."""
    own = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return {**own, "TMPDIR": str(tmp), "HF_HUB_OFFLINE": "1", "HOSTNAME": "some-machine"}


class Server:
    """A server that answers at an address."""

    address: tuple[str, int] | None = None

    @contextmanager
    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        patience_s: float = 60.0,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[http.client.HTTPResponse]:
        """One request on a connection of its own; leaving the context closes the connection.

        A byte that takes longer than `patience_s` raises TimeoutError.
        """
        assert self.address
        connection = http.client.HTTPConnection(*self.address, timeout=patience_s)
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else None
        try:
            connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            yield connection.getresponse()
        finally:
            connection.close()

    def post(self, path: str, body: object, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
        with self.request("POST", path, body, headers=headers) as response:
            return response.status, json.loads(response.read())

    def get(self, path: str) -> tuple[int, bytes]:
        with self.request("GET", path) as response:
            return response.status, response.read()

    def stream(self, path: str, body: object) -> list[str]:
        """The data of all events of a stream."""
        with self.request("POST", path, body) as response:
            assert response.status == 200
            return list(events(response))


class Launched(Server):
    """`launcher` on a free port, with its run folder below `tmp`. Use as a context manager; leaving it kills."""

    def __init__(
        self,
        tmp: Path,
        *flags: str,
        cwd: Path | None = None,
        under: Sequence[str] = (),
        stdout: IO[str] | None = None,
        hub: str | None = None,
    ) -> None:
        """`under` is a command that runs another, like `unshare`; `stdout` is a file for its stdout.

        `hub`: the address of the hub; none is reached without it.
        """
        self.tmp = tmp
        self.stderr = ""
        command = [*under, str(_COMMAND), "--port=0", f"--device={_DEVICE}", *flags]
        variables = environment(tmp)
        if hub is not None:
            variables.update(HF_ENDPOINT=hub, HF_HUB_OFFLINE="0")
        self.process = subprocess.Popen(
            command,
            env=variables,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.stderr += line
            if found := _SERVING.search(line):
                self.address = (found[1], int(found[2]))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(timeout=10)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def wait_until_serving(self, timeout_s: float = START_TIMEOUT_S) -> Self:
        wait_until(lambda: self.address or self.process.poll() is not None, timeout_s)
        assert self.address, f"it did not start:\n{self.stderr}"
        return self

    def end(self) -> tuple[int, str]:
        """Wait for it to end; its exit code and all that it wrote."""
        code = self.process.wait(START_TIMEOUT_S)
        self._reader.join(timeout=10)
        return code, self.stderr

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def children(self) -> list[int]:
        """Processes that carry the run folder in their arguments; a zombie has none."""
        pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
        return [pid for pid in pids if f"{self.tmp}/penstock-" in " ".join(arguments(pid))]


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port of this machine that a server may listen on, and that nobody is given by chance meanwhile."""
    with socket.socket() as holder:
        # Bound and never listening: what listens there must say the same, as our servers do.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def arguments(pid: int) -> list[str]:
    """The command line of a process; none if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []


def events(response: http.client.HTTPResponse) -> Iterator[str]:
    """The data of each server-sent event as it comes; raises IncompleteRead if the body is cut off."""
    rest = b""
    # Reading by lines would take a body that breaks off for one that ends.
    while part := response.read1():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line.removeprefix(b"data:").strip().decode()


def wait_until(done: Callable[[], object], timeout_s: float) -> None:
    """Poll; fails the test when it takes too long."""
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline, f"waited longer than {timeout_s} s"
        time.sleep(0.02)
