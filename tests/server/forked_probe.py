"""A fork server whose shards import nothing: each says what it has, and then does what its flag asks for."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from penstock_server.process import cli, fork_server


def _shard(argv: list[str], is_forked: bool = False) -> int:
    # A child of its own, in its group.
    child = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL) if "--child" in argv else None
    has = {
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "group": os.getpgid(0),
        "files": [os.readlink(it) for it in Path("/proc/self/fd").iterdir() if it.exists()],
        "flags": argv,
        "is_forked": is_forked,
        "is_default": signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL,
        "threads": threading.active_count(),
        "child": child and child.pid,
    }
    sys.stdout.write(json.dumps(has) + "\n")
    sys.stdout.flush()
    if "--raise" in argv:
        raise ValueError("as asked")
    if "--exit" in argv:
        sys.exit(7)
    if "--stay" in argv:
        signal.pause()
    return 3


def _check(argv: list[str]) -> int:
    sys.stderr.write("checked\n")
    return 1 if "--wrong" in argv else 0


cli.main = _shard
cli.check = _check
fork_server._load = lambda: None
fork_server.main(sys.argv[1:])
