"""Clients that request a long stream and never read it, while another client reads its own."""

import json
import socket
import time
from itertools import pairwise

from e2e.faults import router
from e2e.launched import Launched, events

from benchmarks.figure import Figure, percentile
from benchmarks.reliability import served
from benchmarks.reliability.memory import resident_mib

_NUM_READERS = 24
_WRITE_TIMEOUT_S = 3
_LEN = 16_000
_RECEIVE_BYTES = 4096
# Long enough that buffers fill and the timeout passes.
_PATIENCE_S = 90.0
_NUM_GAPS = 400


def measure() -> list[Figure]:
    """Ends when the server has disconnected all of them."""
    with served.tiny(f"--write-timeout={_WRITE_TIMEOUT_S}", max_len=_LEN) as server:
        alone = _gaps(server)
        pid = router(server)
        before = resident_mib(pid)
        readers = [_stalled(server, number) for number in range(_NUM_READERS)]
        gaps = _gaps(server)
        peak, cut_off_s = _wait(server, pid)
        after = _gaps(server)
        for reader in readers:
            reader.close()
    kib = 1024 * (peak - before) / _NUM_READERS
    note = f"p99; alone {percentile(alone, 99):.1f} ms, after {percentile(after, 99):.1f} ms"
    return [
        Figure(f"{_NUM_READERS} readers that do not read: memory each", kib, "KiB", at_most=128, note="of the router"),
        Figure(
            "readers that do not read: cut off after", cut_off_s, "s", at_most=60,
            note=f"--write-timeout {_WRITE_TIMEOUT_S}, once some 200 KiB of buffers are full",
        ),
        Figure("a token of the other client", percentile(gaps, 99), "ms", note=note),
    ]  # fmt: skip


def _stalled(server: Launched, number: int) -> socket.socket:
    assert server.address
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
    reader.connect(server.address)
    # Each token's event is long, so that buffers fill soon.
    body = {"inputs": f"stalled {number}", "parameters": {"max_new_tokens": _LEN - 100, "top_n_tokens": 5}}
    data = json.dumps(body).encode()
    head = "POST /generate_stream HTTP/1.1\r\nHost: x\r\nContent-Type: application/json"
    reader.sendall(f"{head}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    return reader


def _gaps(server: Launched) -> list[float]:
    body = {"inputs": "a reader", "parameters": {"max_new_tokens": _NUM_GAPS}}
    with server.request("POST", "/generate_stream", body) as response:
        at = [time.perf_counter() for _ in events(response)]
    return [1e3 * (after - before) for before, after in pairwise(at)]


def _wait(server: Launched, pid: int) -> tuple[float, float]:
    """The most memory until nothing runs any more, and how long that took."""
    started, peak = time.monotonic(), 0.0
    while json.loads(server.get("/stats")[1])["running"]:
        peak = max(peak, resident_mib(pid))
        assert time.monotonic() - started < _PATIENCE_S, "readers that do not read are still served"
        time.sleep(0.05)
    return peak, time.monotonic() - started
