"""Where blocks are fetched from: the seam of transports. An address says by its first word which one it is for."""

import socket
import ssl
from typing import NamedTuple

from penstock_server.base.config import BlocksAddress
from penstock_server.base.errors import StartError, TransferFailed
from penstock_server.base.mutual_tls import NODE_NAME, MutualTls
from penstock_server.rpc.private_socket import private_umask

UNIX, TCP = "unix:", "tcp:"
_BACKLOG = 16


class Listening(NamedTuple):
    """A socket that listens, and where others reach it."""

    listener: socket.socket
    address: str


def listen(where: BlocksAddress) -> Listening:
    """Listen there; raises StartError where that cannot be."""
    try:
        if where.path is not None:
            where.path.unlink(missing_ok=True)
            listener = socket.socket(socket.AF_UNIX)
            with private_umask():
                listener.bind(str(where.path))
            address = f"{UNIX}{where.path}"
        else:
            listener = socket.create_server((where.host, where.port), family=_family(where.host))
            shown = f"[{where.host}]" if ":" in where.host else where.host
            address = f"{TCP}{shown}:{listener.getsockname()[1]}"
        listener.listen(_BACKLOG)
    except OSError as error:
        raise StartError(f"--blocks-listen: cannot listen on {where.shown}: {error}") from None
    return Listening(listener, address)


def connect(address: str, tls: MutualTls | None, timeout_s: float) -> socket.socket:
    """A connection to an address that was told; raises TransferFailed for one that is none, and OSError."""
    if address.startswith(UNIX):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout_s)
        connection.connect(address.removeprefix(UNIX))
        return connection
    host, _, port = address.removeprefix(TCP).rpartition(":")
    if not address.startswith(TCP) or not port.isdecimal():
        raise TransferFailed(f"{address!r} is neither unix:PATH nor tcp:ADDRESS:PORT")
    connection = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls is None:
        return connection
    return tls.context().wrap_socket(connection, server_hostname=NODE_NAME)


def accepted(connection: socket.socket, tls: ssl.SSLContext | None) -> socket.socket:
    """The connection of somebody who connected, encrypted if it is to be."""
    if connection.family == socket.AF_UNIX:
        return connection
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls is None:
        return connection
    return tls.wrap_socket(connection, server_side=True)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
