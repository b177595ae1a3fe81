"""Clients that disconnect: at once, during the prompt, during the stream; by FIN, by RST and by half-close."""

import json
import socket
import struct
import time
from random import Random

from e2e.faults import MAX_CONCURRENT
from e2e.launched import Launched
from e2e.oracle import Oracle

from benchmarks.figure import Figure, percentile
from benchmarks.reliability import served

_N = 4
_GIVES_UP_S = 30.0
_RESET = struct.pack("ii", 1, 0)


def measure(count: int, seed: int = 0) -> list[Figure]:
    """`count` clients, one after the other."""
    dice = Random(f"leavers {seed}")
    with served.tiny(f"--max-best-of={_N}") as server:
        oracle = Oracle(server, MAX_CONCURRENT)
        times = [_leave(server, dice, number) for number in range(count)]
        # In the end no block is held.
        oracle.begin()
    streaming = [took for took in times if took is not None]
    note = f"{len(streaming)} of {count} clients, n 1 or {_N}, closed, reset or half-closed; looking takes some of it"
    return [
        Figure(
            "leave mid-stream: blocks free after, p50", percentile(streaming, 50), "ms", at_most=25, note=note
        ),
        Figure("leave mid-stream: blocks free after, p99", percentile(streaming, 99), "ms", at_most=100),
    ]


def _leave(server: Launched, dice: Random, number: int) -> float | None:
    """Milliseconds from disconnect until no resource is held; `None` if the request may not have been read before."""
    assert server.address
    client = socket.create_connection(server.address, timeout=_GIVES_UP_S)
    body = {"prompt": f"{number} " + "x" * dice.randint(1, 150), "max_tokens": 90, "stream": True}
    client.sendall(_http({**body, "n": dice.choice((1, _N)), "ignore_eos": True}))
    waits_for_bytes = dice.random() < 0.7
    if waits_for_bytes:
        client.recv(dice.randint(1, 4000))
    else:
        time.sleep(dice.uniform(0, 0.05))
    started = time.perf_counter()
    _part(client, dice.choice(("close", "reset", "half")))
    _wait_until_free(server)
    took = 1e3 * (time.perf_counter() - started)
    client.close()
    return took if waits_for_bytes else None


def _part(client: socket.socket, how: str) -> None:
    if how == "half":
        client.shutdown(socket.SHUT_WR)
        return
    if how == "reset":
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    client.close()


def _wait_until_free(server: Launched) -> None:
    deadline = time.monotonic() + _GIVES_UP_S
    while True:
        stats = json.loads(server.get("/stats")[1])
        if stats["running"] + stats["waiting"] + stats["kv_blocks_used"] == 0:
            return
        assert time.monotonic() < deadline, f"blocks are held for a client that left: {stats}"


def _http(body: object) -> bytes:
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json"
    return f"{head}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
