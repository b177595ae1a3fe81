"""A launcher as a child process, which ends with the process that started it."""

import os
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO


def start_launcher(
    words: Sequence[str], secret: str, environment: Mapping[str, str], output: IO[bytes] | int | None = None
) -> subprocess.Popen[bytes]:
    """The launcher of this environment. All that it writes goes to `output`; without one, where this process writes.

    The end of this process, even by SIGKILL, closes a pipe, with which the launcher and all of its own end. The secret
    is in memory without a name, so that neither a command line nor a folder has it.
    """
    alive, _kept_open = os.pipe()
    secret_fd = os.memfd_create("secret")
    os.write(secret_fd, secret.encode())
    own = [f"--parent-pipe-fd={alive}", f"--replica-secret-file=/dev/fd/{secret_fd}"]
    launcher = Path(sysconfig.get_path("scripts")) / "launcher"
    try:
        return subprocess.Popen(
            [launcher, *words, *own],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output is not None else None,
            pass_fds=(alive, secret_fd),
            # Ctrl-C reaches this process alone, which says what it means.
            process_group=0,
        )
    finally:
        os.close(alive)
        os.close(secret_fd)
