"""Traces from end to end: what a collector has after the server ended, and a server whose collector hangs."""

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from e2e import faults
from e2e.conftest import Launch
from e2e.launched import events, wait_until
from e2e.oracle import SLACK

TRACE = "0af7651916cd43dd8448eb211c80319c"
HEADERS = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
CANARY = "canary-c0ffee"
BODY = {"inputs": f"{CANARY} once upon a time", "parameters": {"max_new_tokens": 40}}


class Collector:
    """Takes OTLP over gRPC and keeps the bytes, whose strings are readable as they are; never answers if it hangs."""

    def __init__(self, *, hangs: bool = False, identity: tuple[Path, Path] | None = None) -> None:
        self.received: list[bytes] = []
        self._answering = threading.Event()
        if not hangs:
            self._answering.set()
        methods: dict[str, Any] = {"Export": grpc.unary_unary_rpc_method_handler(self._export)}
        service = "opentelemetry.proto.collector.trace.v1.TraceService"
        self._server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
        self.address = f"127.0.0.1:{self._open(identity)}"
        self._server.start()

    def _open(self, identity: tuple[Path, Path] | None) -> int:
        if identity is None:
            return int(self._server.add_insecure_port("127.0.0.1:0"))
        cert, key = (path.read_bytes() for path in identity)
        return int(self._server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, cert)])))

    def _export(self, request: bytes, _context: grpc.ServicerContext) -> bytes:
        self.received.append(request)
        self._answering.wait(60)
        return b""

    def stop(self) -> None:
        self._answering.set()
        self._server.stop(None).wait()


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.stop()


@pytest.fixture
def hanging() -> Iterator[Collector]:
    collector = Collector(hangs=True)
    yield collector
    collector.stop()


def test_what_a_request_did_is_there_when_the_server_has_ended(
    launch: Launch, model: Path, collector: Collector, tmp_path: Path
) -> None:
    flags = (f"--model-id={model}", "--num-shard=2", f"--otlp-endpoint=http://{collector.address}")
    name = "--otlp-service-name=name-of-a-test"
    launched = launch(*flags, name, faults.hold_flag(tmp_path)).wait_until_serving()
    body = {"inputs": BODY["inputs"], "parameters": {"max_new_tokens": 200, "ignore_eos": True}}
    with ExitStack() as stack:
        held = stack.enter_context(ExitStack())
        held.enter_context(faults.held(launched))
        stream = events(
            stack.enter_context(launched.request("POST", "/generate_stream", body, headers=HEADERS))
        )
        next(stream)
        launched.signal(signal.SIGTERM)
        wait_until(lambda: launched.get("/health")[0] == 503, 5.0 * SLACK)
        held.close()
        assert '"generated_text":"' in list(stream)[-1]
    code, stderr = launched.end()
    assert code == 0, stderr
    sent = b"".join(collector.received)
    assert bytes.fromhex(TRACE) in sent
    names = [b"POST /generate_stream", b"tokenize", b"queue", b"prefill", b"decode", b"step", b"forward"]
    assert [name for name in names if name not in sent] == []
    assert b"name-of-a-test" in sent
    assert b"penstock.shard.rank" in sent
    assert CANARY.encode() not in sent


def test_a_collector_with_a_certificate_is_reached_over_tls(
    launch: Launch, model: Path, identity: tuple[Path, Path]
) -> None:
    collector = Collector(identity=identity)
    flags = (f"--model-id={model}", f"--otlp-endpoint=https://{collector.address}")
    # The certificates that the machine trusts, as OpenSSL and rustls read them.
    launched = launch(*flags, under=("env", f"SSL_CERT_FILE={identity[0]}")).wait_until_serving()
    assert launched.post("/generate", BODY)[0] == 200
    launched.signal(signal.SIGTERM)
    assert launched.end()[0] == 0
    assert b"POST /generate" in b"".join(collector.received)
    collector.stop()


def test_a_collector_that_hangs_costs_traces_and_no_time(
    launch: Launch, model: Path, hanging: Collector
) -> None:
    flags = (f"--model-id={model}", f"--otlp-endpoint={hanging.address}")
    launched = launch(*flags).wait_until_serving()
    for _ in range(5):
        status, answer = launched.post("/generate", BODY)
        assert status == 200
        assert answer["generated_text"]
    started = time.monotonic()
    launched.signal(signal.SIGTERM)
    code, stderr = launched.end()
    assert code == 0
    assert time.monotonic() - started < 10 * SLACK
    assert "the last traces were not sent" in stderr
    assert hanging.received
