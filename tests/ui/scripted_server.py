"""A server for the page's tests: the real static files and security headers, and answers that a test scripts.

It speaks the same HTTP as the router, as far as the page uses it. It has no model and no scheduler: what it streams,
how fast, and where it breaks is what the test asked for.
"""

import json
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

UI = Path(__file__).resolve().parents[2] / "router" / "ui"
CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass
class Answer:
    """The answer to one request. Without a script, the server repeats the question."""

    pieces: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    delay_s: float = 0.0
    finish_reason: str = "stop"
    cached_tokens: int = 0
    status: int = 200
    error: dict[str, Any] | None = None
    headers: dict[str, str] = field(default_factory=dict)
    # Ends the stream without `[DONE]`, as a killed server does.
    cut: bool = False
    # Waits after the last piece until the client leaves.
    hold: bool = False
    # Waits after so many deltas until the test sets `go`.
    wait_after: int | None = None
    go: threading.Event = field(default_factory=threading.Event)
    left: threading.Event = field(default_factory=threading.Event)

    def deltas(self) -> Iterator[dict[str, Any]]:
        """The deltas of a chat stream, in order."""
        yield from ({"reasoning_content": piece} for piece in self.reasoning)
        yield from ({"content": piece} for piece in self.pieces)
        yield from ({"tool_calls": [call]} for call in self.tool_calls)


def initial_stats() -> dict[str, Any]:
    """A quiet server's `GET /stats`."""
    return {
        "model_id": "penstock/demo",
        "version": "0.1.0",
        "uptime_s": 4210.0,
        "status": "ready",
        "status_reason": None,
        "restarts": 0,
        "waiting": 0,
        "running": 0,
        "kv_blocks_used": 0,
        "kv_blocks_cached": 0,
        "kv_blocks_total": 2048,
        "kv_block_tokens": 16,
        "tokens_generated_total": 0,
        "tokens_prompt_total": 0,
        "prefix_cache_hit_tokens_total": 0,
        "preemptions_total": 0,
        "drafts_total": 0,
        "drafted_tokens_total": 0,
        "accepted_tokens_total": 0,
        "requests_total": {"success": 0},
        "steps_total": 0,
        "last_step": None,
    }


class ScriptedServer:
    """Runs in a thread, on a port of its own, until `stop`; `start` again takes the same port."""

    def __init__(self) -> None:
        self.answers: deque[Answer] = deque()
        self.requests: list[dict[str, Any]] = []
        self.stats = initial_stats()
        self.models = [{"id": "penstock/demo", "object": "model"}]
        self.api_key: str | None = None
        self.on_stats: Any = None
        self.closing = threading.Event()
        # Bound and never listening, so that nobody else gets the port while the server is stopped.
        self._holder = socket.socket()
        self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._holder.bind(("127.0.0.1", 0))
        self._port = self._holder.getsockname()[1]
        self.start()

    def start(self) -> None:
        """Listens."""
        self.closing.clear()
        self._http = _HttpServer(("127.0.0.1", self._port), _handler(self))
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Stops listening; open streams end."""
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()

    def close(self) -> None:
        """Stops for good."""
        self.stop()
        self._holder.close()

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self._port}/ui"

    def script(self, *pieces: str, **options: Any) -> Answer:
        """Queues the answer to the next request."""
        answer = Answer(list(pieces), **options)
        self.answers.append(answer)
        return answer


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        # Clients that leave are what half of the tests are about.
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def _handler(server: ScriptedServer) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        scripted = server

    return Handler


class _Handler(BaseHTTPRequestHandler):
    scripted: ScriptedServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def parse_request(self) -> bool:
        # Connections that were kept alive die with the server.
        if self.scripted.closing.is_set():
            self.close_connection = True
            return False
        return super().parse_request()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path in {"/", "/ui"}:
            self._file(UI / "index.html")
        elif path == "/docs":
            self._file(UI / "docs.html")
        elif path == "/openapi.json":
            self._send((UI.parents[1] / "docs" / "openapi.json").read_bytes(), "application/json", 200, {})
        elif path.startswith("/ui/"):
            self._file(UI / path.removeprefix("/ui/"))
        elif path == "/v1/models":
            self._json({"object": "list", "data": self.scripted.models})
        elif path == "/stats":
            if self.scripted.on_stats:
                self.scripted.on_stats(self.scripted.stats)
            self._json(self.scripted.stats)
        else:
            self._json({"error": "not found", "error_type": "not_found"}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.scripted.requests.append(body)
        key = self.scripted.api_key
        if key and self.headers["authorization"] != f"Bearer {key}":
            self._json(
                {"error": {"message": "Give the API key as a Bearer token.", "http_status_code": 401}}, 401
            )
            return
        answer = self.scripted.answers.popleft() if self.scripted.answers else _echo(body)
        if answer.status != 200:
            self._json(answer.error, answer.status, answer.headers)
            return
        self._start_stream()
        try:
            self._stream(self._chunks(answer, body), answer)
        except OSError:
            answer.left.set()
        self.close_connection = True

    def _chunks(self, answer: Answer, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if self.path == "/v1/completions":
            yield from _completion_chunks(answer, body)
        else:
            for number, delta in enumerate(answer.deltas(), 1):
                yield {
                    "choices": [{"index": 0, "delta": delta}],
                    **_usage_so_far(number, answer, body),
                }
            yield {"choices": [{"index": 0, "delta": {}, "finish_reason": answer.finish_reason}]}
        yield {"choices": [], "usage": _usage(len(list(answer.deltas())), answer, body)}

    def _stream(self, chunks: Iterator[dict[str, Any]], answer: Answer) -> None:
        waiting = len(list(answer.deltas()))
        for number, chunk in enumerate(chunks):
            if number == answer.wait_after:
                self._wait_to_go(answer)
            if waiting == 0 and answer.hold:
                self._hold()
            if waiting == 0 and answer.cut:
                return
            if waiting == 0 and answer.error:
                chunk = {"error": answer.error}
            self._event(json.dumps(chunk))
            if "error" in chunk:
                break
            waiting -= 1
            if self.scripted.closing.wait(answer.delay_s):
                return
        self._event("[DONE]")

    def _wait_to_go(self, answer: Answer) -> None:
        while not self.scripted.closing.is_set() and not answer.go.wait(0.02):
            pass

    def _hold(self) -> None:
        # Comments are what tells that the client has gone.
        while not self.scripted.closing.is_set():
            self.wfile.write(b":\n\n")
            time.sleep(0.02)

    def _event(self, data: str) -> None:
        self.wfile.write(f"data: {data}\n\n".encode())

    def _start_stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()

    def _json(self, value: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self._send(json.dumps(value).encode(), "application/json", status, headers or {})

    def _file(self, path: Path) -> None:
        if not path.is_file() or UI not in path.resolve().parents:
            self._send(b"", "text/plain", 404, {})
            return
        policy = "; ".join((UI / "csp.txt").read_text().split("\n")).strip("; ")
        self._send(path.read_bytes(), CONTENT_TYPES[path.suffix], 200, {"content-security-policy": policy})

    def _send(self, content: bytes, content_type: str, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {
            "content-type": content_type,
            "content-length": str(len(content)),
            **headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


def _echo(body: dict[str, Any]) -> Answer:
    said = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
    return Answer([f"{word} " for word in f"You said: {said}".split(" ")])


def _usage(tokens: int, answer: Answer, body: dict[str, Any]) -> dict[str, Any]:
    prompt = 9 + sum(len(str(m.get("content")).split()) for m in body.get("messages", []))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": tokens,
        "total_tokens": prompt + tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
    }


def _usage_so_far(tokens: int, answer: Answer, body: dict[str, Any]) -> dict[str, Any]:
    asked = body.get("stream_options", {}).get("continuous_usage_stats")
    return {"usage": _usage(tokens, answer, body)} if asked else {}


def _completion_chunks(answer: Answer, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    levels = [-0.02, -0.2, -0.6, -1.4, -2.5, -4.0]
    for index, piece in enumerate(answer.pieces):
        chosen = levels[(index * 5) % len(levels)]
        top = {piece: chosen, " else": -1.1, " other\n": -2.0, " rare": -5.0}
        logprobs = {"tokens": [piece], "token_logprobs": [chosen], "top_logprobs": [top], "text_offset": [0]}
        yield {
            "choices": [
                {
                    "index": 0,
                    "text": piece,
                    "logprobs": logprobs if body.get("logprobs") else None,
                    "finish_reason": "",
                }
            ]
        }
    yield {"choices": [{"index": 0, "text": "", "logprobs": None, "finish_reason": answer.finish_reason}]}
