"""Stands in for the Hugging Face Hub: repositories of files over HTTP on localhost, and its ways to refuse.

It speaks as much of the hub's API as `huggingface_hub` asks for when it downloads a model, and keeps what it was asked.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

COMMIT = "c0ffee" + "0" * 34
TOKEN = "hf_right"


@dataclass
class FakeHub:
    """Repositories by id, who may read them, and the requests so far."""

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    # The connection breaks once, after so many bytes of this file.
    breaks: dict[str, int] = field(default_factory=dict)
    # Method, path and Range of each request.
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    url: str = ""

    def fetched(self, name: str) -> list[str | None]:
        """The ranges in which a file was asked for."""
        return [part for method, path, part in self.requests if method == "GET" and path.endswith(f"/{name}")]


@contextmanager
def running_hub() -> Iterator[FakeHub]:
    """A hub on a free port."""
    hub = FakeHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, with_body: bool) -> None:
            path = unquote(self.path.partition("?")[0])
            hub.requests.append((self.command, path, self.headers.get("Range")))
            name, revision, file = _parts(path)
            files = hub.repositories.get(name)
            if files is None:
                return self._refuse(404, "RepoNotFound")
            if name in hub.gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self._refuse(403 if self.headers.get("Authorization") else 401, "GatedRepo")
            if revision not in ("main", COMMIT):
                return self._refuse(404, "RevisionNotFound")
            if file is None:
                described = _tree(files) if "/tree/" in path else _described(name, files)
                return self._send(described, {"Content-Type": "application/json"}, True)
            if file not in files:
                return self._refuse(404, "EntryNotFound")
            return self._send_file(file, files[file], with_body)

        def _send_file(self, name: str, content: bytes, with_body: bool) -> None:
            begin = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
            headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
            if begin:
                headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
            breaks_at = hub.breaks.pop(name, None) if with_body else None
            self._send(content[begin:], headers, with_body, 206 if begin else 200, breaks_at)

        def _refuse(self, status: int, code: str) -> None:
            self._send(b"", {"X-Error-Code": code, "X-Error-Message": code}, True, status)

        def _send(
            self,
            body: bytes,
            headers: dict[str, str],
            with_body: bool,
            status: int = 200,
            breaks_at: int | None = None,
        ) -> None:
            self.send_response(status)
            for header, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(header, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body[:breaks_at])
            self.close_connection = breaks_at is not None and with_body

        def log_message(self, *_arguments: object) -> None:
            """Not on stderr."""

    return Handler


def _parts(path: str) -> tuple[str, str, str | None]:
    """Repository, revision, and the file if one is asked for."""
    if path.startswith("/api/models/"):
        path = path.removeprefix("/api/models/").replace("/tree/", "/revision/")
        name, _, revision = path.partition("/revision/")
        return name, revision or "main", None
    name, _, rest = path.removeprefix("/").partition("/resolve/")
    revision, _, file = rest.partition("/")
    return name, revision, file


def _tree(files: dict[str, bytes]) -> bytes:
    entries = [
        {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
        for name, content in files.items()
    ]
    return json.dumps(entries).encode()


def _described(name: str, files: dict[str, bytes]) -> bytes:
    siblings = [{"rfilename": file, "size": len(content)} for file, content in files.items()]
    return json.dumps({"id": name, "sha": COMMIT, "private": False, "siblings": siblings}).encode()
