"""Several replicas without a model, which take a device's time: behind one router, or behind their own and a proxy."""

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from benchmarks.server import BIN

DEMO_MODEL = Path(__file__).parents[2] / "server" / "penstock_server" / "demo_model"
NUM_REPLICAS = 4
# About a model of 8B parameters on a small GPU: so slow that the time of this machine's two cores does not count.
STEP_US = 20_000
TOKEN_US = 200
_LISTENING = "listening on "


class Cluster:
    """One entry with this policy over new shards with so many KV blocks each. Leaving the context stops all."""

    def __init__(self, policy: str, num_blocks: int, has_proxy: bool) -> None:
        self._policy, self._num_blocks, self._has_proxy = policy, num_blocks, has_proxy
        self._folder = TemporaryDirectory()
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        sockets = [f"{self._folder.name}/{number}.sock" for number in range(NUM_REPLICAS)]
        sizes = [str(self._num_blocks), str(STEP_US), str(TOKEN_US)]
        cargo = ["cargo", "bench", "--locked", "-q", "-p", "penstock-router", "--bench", "shards", "--"]
        self._line([*cargo, *sizes, *sockets])
        self.url = self._proxy(sockets) if self._has_proxy else self._router(sockets)
        return self

    def _router(self, sockets: list[str]) -> str:
        flags = ["--model-id=demo", f"--model-path={DEMO_MODEL}", f"--replica-policy={self._policy}"]
        return self._serving([*flags, *(f"--replica=unix:{socket}" for socket in sockets)])

    def _proxy(self, sockets: list[str]) -> str:
        upstreams = [f"--upstream={self._router([socket])}" for socket in sockets]
        return self._serving([*upstreams, f"--upstream-policy={self._policy}"])

    def _serving(self, flags: list[str]) -> str:
        line = self._line([str(BIN / "penstock-router"), "--port=0", "--log-level=warn", *flags])
        return "http://" + line.removeprefix(_LISTENING)

    def _line(self, command: list[str]) -> str:
        """Starts a process, and returns the first line that it writes."""
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._processes.append(process)
        assert process.stdout is not None
        if not (line := process.stdout.readline()):
            raise RuntimeError(f"it ended with {process.wait()}: {' '.join(command)}")
        return line.rstrip()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            # The shards, which were started first, end with their stdin, routers when they are told to.
            assert process.stdin is not None
            process.stdin.close()
            if process is not self._processes[0]:
                process.terminate()
            process.wait(30)
        self._folder.cleanup()
