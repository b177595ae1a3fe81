"""Where the ranks of a group over several machines find each other: a store of words at the launcher of the first.

PyTorch's own stores for TCP listen on every interface and ask for no secret. This one is behind the port of the
launcher, where each side proves that it knows the secret without sending it (`prove`). A message is a line of JSON. The
launcher answers at once, so waiting is asking again.
"""

import hashlib
import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store

from penstock_server.base.config import Rendezvous
from penstock_server.base.mutual_tls import NODE_NAME

# The time that a live launcher needs for an answer; heartbeats to the other nodes notice one that is stopped.
_ANSWER_S = 10.0
_CONNECT_S = 5.0
_POLL_S = 0.02
_MAX_LINE_BYTES = 1 << 20


class RendezvousFailed(RuntimeError):
    """The launcher is not there, or refuses this rank."""


class LauncherStore(Store):
    """PyTorch's `Store` over the launcher's; threads of NCCL use it, too."""

    def __init__(self, meeting: Rendezvous, timeout_s: float) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._wait_s = timeout_s
        self._socket = _connect(meeting)
        self._socket.settimeout(_ANSWER_S)
        self._lines = self._socket.makefile("rb")
        try:
            self._prove(meeting.secret.encode())
            self._send({"rank": {"group": meeting.group, "start": meeting.start}})
            self._receive("welcome")
        except BaseException:
            self.close()
            raise

    @property
    def host(self) -> str:
        """The address of this machine that reaches the launcher."""
        return str(self._socket.getsockname()[0])

    def close(self) -> None:
        """Leave the launcher; nothing can be asked any more."""
        self._lines.close()
        self._socket.close()

    def set(self, key: str, value: str | bytes) -> None:
        self._ask({"set": {"key": key, "value": _hex(value)}})

    def get(self, key: str) -> bytes:
        deadline = time.monotonic() + self._wait_s
        while (found := self._ask({"get": {"key": key}})) is None:
            _sleep_until(deadline, key)
        return bytes.fromhex(found)

    def add(self, key: str, num: int) -> int:
        while True:
            before = self._ask({"get": {"key": key}})
            total = num + (0 if before is None else int(bytes.fromhex(before)))
            change = {"key": key, "expected": before, "value": _hex(str(total))}
            if self._ask({"replace": change}) == change["value"]:
                return total

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        expected = _hex(expected_value) or None
        change = {"key": key, "expected": expected, "value": _hex(desired_value)}
        found = self._ask({"replace": change})
        return b"" if found is None else bytes.fromhex(found)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        wait_s = self._wait_s if timeout is None else timeout.total_seconds()
        deadline = time.monotonic() + wait_s
        while not self.check(keys):
            _sleep_until(deadline, ", ".join(keys))

    def check(self, keys: list[str]) -> bool:
        return all(self._ask({"get": {"key": key}}) is not None for key in keys)

    def delete_key(self, key: str) -> bool:
        return self._ask({"delete": {"key": key}}) is not None

    def set_timeout(self, timeout: timedelta) -> None:
        self._wait_s = timeout.total_seconds()

    def has_extended_api(self) -> bool:
        return False

    def _prove(self, secret: bytes) -> None:
        """Each side shows that it knows the secret, by the challenge of the other."""
        theirs = self._receive("challenge")
        mine = secrets.token_hex(32)
        self._send({"challenge": mine, "proof": prove(secret, "client", theirs, mine)})
        if not hmac.compare_digest(self._receive("proof"), prove(secret, "server", theirs, mine)):
            raise RendezvousFailed("the launcher does not know the secret")

    def _ask(self, request: dict[str, Any]) -> str | None:
        with self._lock:
            self._send(request)
            value: str | None = self._receive("value")
            return value

    def _send(self, message: dict[str, Any]) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def _receive(self, field: str) -> Any:
        line = self._lines.readline(_MAX_LINE_BYTES)
        if not line.endswith(b"\n"):
            raise RendezvousFailed("the launcher has closed the connection")
        message = json.loads(line)
        if field not in message:
            raise RendezvousFailed(f"the launcher refuses: {message.get('refused')}")
        return message[field]


def _connect(meeting: Rendezvous) -> socket.socket:
    """A connection to the launcher; over TLS each side knows by it that the other is of the same machines."""
    plain = socket.create_connection((meeting.host, meeting.port), _CONNECT_S)
    if meeting.tls is None:
        return plain
    return meeting.tls.context().wrap_socket(plain, server_hostname=NODE_NAME)


def prove(secret: bytes, side: str, server_challenge: str, client_challenge: str) -> str:
    """A proof that its sender knows the secret; `proof` of the launcher's `nodes/channel.rs` computes the same."""
    text = f"penstock {side} {server_challenge} {client_challenge}"
    return hmac.digest(secret, text.encode(), hashlib.sha256).hex()


def _hex(value: str | bytes | Sequence[int]) -> str:
    return (value.encode() if isinstance(value, str) else bytes(value)).hex()


def _sleep_until(deadline: float, keys: str) -> None:
    if time.monotonic() > deadline:
        raise RendezvousFailed(f"no rank has said {keys} in time")
    time.sleep(_POLL_S)
