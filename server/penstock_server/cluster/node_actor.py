"""The actor that Ray starts on a machine: it runs a launcher with the machine's shards, and passes on its output."""

import os
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence

from penstock_server.cluster.launcher import start_launcher

# The driver reads all the time; of what it cannot take in, the oldest is lost.
_MAX_LINES = 10_000
# The driver hears from an actor that has nothing to say, too.
_PATIENCE_S = 30.0


class NodeActor:
    """The launcher of one machine. It ends with the actor, and the actor with its driver."""

    def __init__(self, words: Sequence[str], secret: str, variables: Mapping[str, str]) -> None:
        environment = {**os.environ, **variables}
        # Ray means the actor with it, which computes nothing.
        environment.pop("OMP_NUM_THREADS", None)
        self._lines: deque[str] = deque(maxlen=_MAX_LINES)
        self._code: int | None = None
        self._changed = threading.Condition()
        try:
            process = start_launcher(words, secret, environment, subprocess.PIPE)
        except OSError as error:
            self._lines.append(f"error: the launcher cannot be started: {error}")
            self._code = 1
            return
        threading.Thread(target=self._read, args=(process,), name="launcher-output", daemon=True).start()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with self._changed:
                self._lines.append(line.decode(errors="replace").rstrip())
                self._changed.notify()
        code = process.wait()
        with self._changed:
            self._code = code
            self._changed.notify()

    def follow(self) -> tuple[list[str], int | None]:
        """Lines that it wrote since the last call, and its exit code when it has ended; waits until there is news."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._code is not None, _PATIENCE_S)
            lines = list(self._lines)
            self._lines.clear()
            return lines, self._code
