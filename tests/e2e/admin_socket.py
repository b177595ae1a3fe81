"""The socket on which operators change a running server."""

import http.client
import json
import socket
from pathlib import Path
from typing import Any


class AdminSocket:
    """Calls of the admin socket."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("admin", timeout=120)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(120)
        connection.sock.connect(str(self.path))
        data = None if body is None else json.dumps(body)
        try:
            connection.request(method, path, data, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read())
        finally:
            connection.close()
