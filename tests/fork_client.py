"""A fork server, and what a launcher asks of it."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_ROOM = " " * 8192
_PROGRAM = ("-m", "penstock_server.process.fork_server")


class ForkServer:
    """`python -m penstock_server.process.fork_server` that listens in this folder; leaving it ends it."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str], program: Sequence[str] = _PROGRAM
    ) -> None:
        """`program`: what runs in its place."""
        self.environment = dict(environment)
        self.path = folder / "fork.sock"
        reader, self._writer = os.pipe()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.path))
            listener.listen()
            words = [f"--parent-pipe-fd={reader}", f"--socket={self.path}", _ROOM]
            self.process = subprocess.Popen(
                [sys.executable, "-P", *program, *words],
                env=self.environment,
                stdin=listener.fileno(),
                pass_fds=[reader],
            )
        os.close(reader)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
        assert self.process.wait(timeout=30) is not None

    def leave(self) -> None:
        """Closes the connection, as a launcher that dies."""
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1

    def ask(self, *flags: object, environment: Mapping[str, str] | None = None) -> Forked:
        """A shard that has these variables, or those of the server."""
        words = ["-P", "-m", "penstock_server", *map(str, flags)]
        return Forked(self.path, request_of(words, environment or self.environment))


def request_of(arguments: Sequence[str], environment: Mapping[str, str], **others: object) -> bytes:
    fields = {
        "program": sys.executable,
        "arguments": arguments,
        "environment": environment,
        "folder": os.getcwd(),
    }
    return json.dumps({**fields, **others}).encode()


class Forked:
    """A shard that was asked for."""

    def __init__(self, server: Path, message: bytes, length: int | None = None, num_files: int = 3) -> None:
        """`length` is what the message says of itself."""
        self._alive, self._end_of_life = os.pipe()
        self._reader, writer = os.pipe()
        heading = struct.pack("<I", len(message) if length is None else length)
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.settimeout(60)
        self.connection.connect(str(server))
        files = [writer, writer, self._alive, self._alive][:num_files]
        socket.send_fds(self.connection, [heading + message], files)
        os.close(writer)
        os.close(self._alive)
        self._answers = self.connection.makefile("r")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        os.close(self._reader)
        if self._end_of_life >= 0:
            os.close(self._end_of_life)

    def answer(self) -> Any:
        """The next; None at the end."""
        line = self._answers.readline()
        return json.loads(line) if line else None

    def pid(self) -> int:
        answer = self.answer()
        assert answer.keys() == {"pid"}, answer
        return int(answer["pid"])

    def end(self) -> int:
        """The exit code, or the number of a signal below zero."""
        answer = self.answer()
        assert answer.keys() == {"status"}, answer
        return os.waitstatus_to_exitcode(answer["status"])

    def written(self) -> str:
        """All that it wrote, once it has ended."""
        parts = []
        while part := os.read(self._reader, 65536):
            parts.append(part)
        return b"".join(parts).decode()

    def lines_until(self, text: str) -> str:
        """The output of the process, up to this text."""
        read = ""
        while text not in read:
            part = os.read(self._reader, 65536).decode()
            assert part, f"it ended:\n{read}"
            read += part
        return read

    def lose_launcher(self) -> None:
        """Close the end of its pipe that a launcher holds."""
        os.close(self._end_of_life)
        self._end_of_life = -1

    def close(self) -> None:
        """Close the connection."""
        self._answers.close()
        self.connection.close()
