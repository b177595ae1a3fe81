"""Checks of the Unix socket before anything expensive happens."""

import socket
from pathlib import Path

from penstock_server.base.errors import StartError


def prepare(path: Path) -> None:
    """Remove a stale socket; raise StartError for one in use, which gRPC would silently take over."""
    if not path.parent.is_dir():
        raise StartError(
            f"{path}: the folder of this socket does not exist; create it or choose another --uds-path"
        )
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except FileNotFoundError:
            return
        except OSError:
            path.unlink(missing_ok=True)  # left by a process that ended
            return
    raise StartError(f"{path}: another process listens on this socket; stop it or choose another --uds-path")
