"""A launcher on a free port, for measuring: its address, and its log lines with times. Leaving the context stops it."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_CARRIED = Path(__file__).parents[1] / "carried" / "bin"
# The folder of the programs: beside sources that were packed for a GPU, else that of this environment.
BIN = _CARRIED if _CARRIED.exists() else Path(sys.executable).parent
_SERVING = re.compile(r"Serving .* on http://([\d.]+):(\d+)")
_START_TIMEOUT_S = 180.0


class Server:
    """`launcher` with these flags and variables, on the CPU or on another device."""

    def __init__(self, *flags: str, device: str = "cpu", **variables: str) -> None:
        self.started = time.perf_counter()
        # Its lines on stderr, with the seconds since the start of the command.
        self.lines: list[tuple[float, str]] = []
        self.address = ("", 0)
        # That it serves, or has ended.
        self._told = threading.Event()
        command = [str(BIN / "launcher"), "--port=0", f"--device={device}", *flags]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", **variables}
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.lines.append((time.perf_counter() - self.started, line.rstrip()))
            if found := _SERVING.search(line):
                self.address = (found[1], int(found[2]))
                self._told.set()
        # It has ended.
        self._told.set()

    def wait(self) -> None:
        """Until it serves; raises RuntimeError with all its lines where it does not."""
        self._told.wait(_START_TIMEOUT_S)
        if not self.address[1]:
            self._process.kill()
            raise RuntimeError("the server did not start:\n" + "\n".join(line for _, line in self.lines))

    def __enter__(self) -> Self:
        self.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(30)

    def post(self, path: str, body: object) -> Any:
        """Sends one request without streaming."""
        host, port = self.address
        request = urllib.request.Request(
            f"http://{host}:{port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=600) as response:
            return json.load(response)
