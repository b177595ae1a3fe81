"""Malformed and abusive requests, while streams run that must not be affected."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from e2e import faults
from e2e.clients import Load, make_body
from e2e.faults import MAX_CONCURRENT
from e2e.launched import Launched
from e2e.oracle import Oracle

from benchmarks.figure import Figure
from benchmarks.reliability import served

_HEADER_TIMEOUT_S = 2
_BODY_TIMEOUT_S = 2
_PAYLOAD_LIMIT = 100_000
_PATIENCE_S = 10.0
_DRIP_EVERY_S = 0.1
_BODIES = [make_body(6000 + number, 200, number or None) for number in range(8)]
_POST = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
_GET = b"GET /health/live HTTP/1.1\r\nHost: x\r\n"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)
# HEADERS and RST_STREAM of HTTP/2, repeated.
_RAPID_RESET = _PREFACE + 200 * (b"\0\0\1\1\4\0\0\0\1\x82" + b"\0\0\4\3\0\0\0\0\1\0\0\0\x08")

# Bytes to send, and the accepted statuses of the response; 0 is a connection closed without a response.
SHAPES: dict[str, tuple[bytes, tuple[int, ...]]] = {
    "a giant header": (_GET + b"x: " + b"a" * 1_000_000 + b"\r\n\r\n", (431,)),
    "a flood of headers": (_GET + b"x: y\r\n" * 5_000 + b"\r\n", (431,)),
    "a body past the limit": (_POST + b"Content-Length: 100001\r\n\r\n" + b"a" * 100_001, (413,)),
    "chunks past the limit": (
        _POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"fffff\r\n" + b"a" * 0xFFFFF,
        (413,),
    ),
    "a chunk size that is none": (_POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nab\r\n", (400,)),
    "a chunk size that overflows": (_POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 17 + b"\r\n", (400,)),
    "two lengths": (_POST + b"Content-Length: 2\r\nContent-Length: 30\r\n\r\n{}", (400,)),
    "a negative length": (_POST + b"Content-Length: -1\r\n\r\n{}", (400,)),
    "a length and chunks": (
        _POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n",
        (400,),
    ),
    "chunked, but not last": (_POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n", (400,)),
    "no HTTP": (b"\x16\x03\x01\x02\x00" + bytes(range(256)), (400, 0)),
    "a method that is none": (b"BREW /generate HTTP/1.1\r\nHost: x\r\n\r\n", (405,)),
    "a target that is none": (b"GET \xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n", (400,)),
    "a header that is no text": (_GET + b"x\x00y: z\r\n\r\n", (400,)),
    "a body that is no UTF-8": (_POST + b"Content-Length: 13\r\n\r\n{\"inputs\":\"\xff\"", (400,)),
    "a body that is not closed": (_POST + b"Content-Length: 100000\r\n\r\n" + b"[" * 100_000, (400, 422)),
    "HTTP/2 without TLS, streams reset at once": (_RAPID_RESET, (400, 0)),
    "an upgrade to h2c": (
        _GET + b"Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n",
        (200,),
    ),
}  # fmt: skip


def measure(seconds: float) -> list[Figure]:
    """Sends every shape repeatedly for this time."""
    flags = (
        f"--header-timeout={_HEADER_TIMEOUT_S}",
        f"--body-timeout={_BODY_TIMEOUT_S}",
        f"--payload-limit={_PAYLOAD_LIMIT}",
    )
    with served.tiny(*flags) as server, ThreadPoolExecutor() as pool:
        oracle = Oracle(server, MAX_CONCURRENT)
        oracle.learn(_BODIES)
        router = faults.router(server)
        load = Load(server, _BODIES)
        slow_header = pool.submit(_drip, server, _GET)
        slow_body = pool.submit(_drip, server, _POST + b"Content-Length: 100\r\n\r\n")
        num_tried, wrong = _try_for(seconds, server)
        # A request whose body is being read is counted already, and how it ended is not.
        header_s, body_s = slow_header.result(), slow_body.result()
        oracle.check(load.finish())
        assert faults.router(server) == router, "the router did not survive"
        figures = [
            Figure(
                "protocol abuse: answers that are no refusal", wrong, at_most=0,
                note=f"{num_tried} connections of {len(SHAPES)} shapes, 8 other streams unharmed",
            ),
            _closed("slow headers", header_s, _HEADER_TIMEOUT_S, "--header-timeout"),
            _closed("slow body", body_s, _BODY_TIMEOUT_S, "--body-timeout"),
            Figure("20 requests sent at once: answered in order", _pipeline(server, 20), at_least=20),
        ]  # fmt: skip
    return figures


def _closed(name: str, after_s: float, timeout_s: int, flag: str) -> Figure:
    return Figure(f"{name}: closed after", after_s, "s", at_most=timeout_s + 1, note=f"{flag} {timeout_s}")


def _try_for(seconds: float, server: Launched) -> tuple[int, int]:
    """How many were sent, and how many did not get an accepted status."""
    deadline, tried, wrong = time.monotonic() + seconds, 0, 0
    while time.monotonic() < deadline:
        for name, (sent, statuses) in SHAPES.items():
            status = _status(server, sent)
            tried += 1
            if status not in statuses:
                wrong += 1
                print(f"not as it should be: {name}: {status} instead of {statuses}", flush=True)
    return tried, wrong


def _connect(server: Launched) -> socket.socket:
    assert server.address
    return socket.create_connection(server.address, timeout=_PATIENCE_S)


def _status(server: Launched, sent: bytes) -> int:
    """Status of the response; 0 if the connection was closed without one, -1 if neither happened in time."""
    with _connect(server) as client:
        # The server may refuse early and close the connection while this sends.
        with suppress(ConnectionError):
            client.sendall(sent)
        try:
            reply = client.recv(4096)
        except ConnectionError:
            return 0
        except TimeoutError:
            return -1
    return int(reply.split(b" ", 2)[1]) if reply else 0


def _drip(server: Launched, start: bytes) -> float:
    """Sends single bytes with pauses; returns the seconds until the server closes the connection."""
    with _connect(server) as client:
        started = time.monotonic()
        client.settimeout(_DRIP_EVERY_S)
        client.sendall(start)
        while time.monotonic() - started < _PATIENCE_S:
            with suppress(TimeoutError):
                try:
                    client.recv(4096)
                    break
                except ConnectionError:
                    break
            with suppress(ConnectionError):
                client.sendall(b"x")
        return time.monotonic() - started


def _pipeline(server: Launched, count: int) -> int:
    """Sends requests on one connection before reading any response; returns how many got the right status."""
    paths = [f"/missing-{number}" if number % 2 else "/health/live" for number in range(count)]
    requests = [f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n" for path in paths]
    requests[-1] = requests[-1].replace("Host: x", "Host: x\r\nConnection: close")
    with _connect(server) as client:
        client.sendall("".join(requests).encode())
        replies = b"".join(iter(lambda: client.recv(65_536), b""))
    statuses = [int(part.split(b" ", 1)[0]) for part in replies.split(b"HTTP/1.1 ")[1:]]
    expected = [404 if "missing" in path else 200 for path in paths]
    return sum(map(int.__eq__, statuses, expected))
