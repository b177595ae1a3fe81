"""A router over several replicas without a model, which take a device's time: leaving the context stops both."""

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
    """`penstock-router` with this policy over new shards with so many KV blocks each."""

    def __init__(self, policy: str, num_blocks: int) -> None:
        self._policy, self._num_blocks = policy, num_blocks
        self._folder = TemporaryDirectory()
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        sockets = [f"{self._folder.name}/{number}.sock" for number in range(NUM_REPLICAS)]
        sizes = [str(self._num_blocks), str(STEP_US), str(TOKEN_US)]
        cargo = ["cargo", "bench", "--locked", "-q", "-p", "penstock-router", "--bench", "shards", "--"]
        self._line([*cargo, *sizes, *sockets])
        flags = ["--model-id=demo", f"--model-path={DEMO_MODEL}", "--port=0", "--log-level=warn"]
        replicas = [f"--replica=unix:{socket}" for socket in sockets]
        router = [str(BIN / "penstock-router"), *flags, *replicas, f"--replica-policy={self._policy}"]
        self.url = "http://" + self._line(router).removeprefix(_LISTENING)
        return self

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
            # The shards end with their stdin, the router when it is told to.
            assert process.stdin is not None
            process.stdin.close()
            if process is self._processes[-1]:
                process.terminate()
            process.wait(30)
        self._folder.cleanup()
