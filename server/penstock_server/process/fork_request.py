"""The request of a launcher to a fork server, and the check whether the server may do it.

A request is its length in four bytes and a JSON object, beside which the file descriptors of the shard are passed.
An answer is a JSON object on a line. Neither is ever more than data.
"""

import json
import os
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from penstock_server.base.errors import PenstockError

MAX_MESSAGE_LEN = 1 << 20
_LENGTH = struct.Struct("<I")
_PEER = struct.Struct("3i")
# A launcher sends a request at once and whole.
_PATIENCE_S = 5.0
# The plain command that starts a shard.
_COMMAND = ["-P", "-m", "penstock_server"]
# Variables that nothing reads at its import, so that a shard may have them otherwise than its fork server. A GPU is
# chosen when CUDA is initialised, which is never before a fork.
_FREE = {"CUDA_VISIBLE_DEVICES", "HOSTNAME", "OLDPWD", "PENSTOCK_FORK_SERVER", "PWD", "SHLVL", "TMPDIR", "_"}
# The lines of /proc/PID/status that a process inherits.
_INHERITED = (
    *("Umask", "TracerPid", "Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"),
    *("NoNewPrivs", "Seccomp", "Cpus_allowed", "Mems_allowed"),
)


class Refused(PenstockError):
    """This fork server cannot fork such a shard."""


class Request(NamedTuple):
    """A shard to fork."""

    program: str
    # All words behind the program.
    arguments: list[str]
    # All its variables.
    environment: dict[str, str]
    # The current folder.
    folder: str
    # The descriptors of this process; whoever has the request closes them.
    stdout: int
    stderr: int
    parent_pipe: int

    @property
    def flags(self) -> list[str]:
        """The flags of the shard. The pipe has the number that it has in this process."""
        return [*self.arguments[len(_COMMAND) :], f"--parent-pipe-fd={self.parent_pipe}"]

    @property
    def command_line(self) -> list[str]:
        return [self.program, *self.arguments]

    def close(self) -> None:
        for descriptor in (self.stdout, self.stderr, self.parent_pipe):
            os.close(descriptor)


def receive(connection: socket.socket, check: Callable[[Request], None]) -> Request:
    """Read the request of a connection; raises Refused for what is none, or as `check` does."""
    connection.settimeout(_PATIENCE_S)
    try:
        # Room for one descriptor more than the three, so that too many are noticed.
        heading, descriptors, _, _ = socket.recv_fds(connection, _LENGTH.size, 4, socket.MSG_CMSG_CLOEXEC)
    except OSError as error:
        raise Refused(f"no request came: {error}") from error
    try:
        request = _parse(_read(connection, heading), descriptors)
        check(request)
        return request
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise


def _read(connection: socket.socket, heading: bytes) -> bytes:
    if len(heading) != _LENGTH.size:
        raise Refused("no request came")
    (length,) = _LENGTH.unpack(heading)
    if length > MAX_MESSAGE_LEN:
        raise Refused(f"a request of {length} bytes is longer than {MAX_MESSAGE_LEN}")
    parts, left = [], length
    while left:
        try:
            part = connection.recv(left)
        except OSError as error:
            raise Refused(f"a request broke off: {error}") from error
        if not part:
            raise Refused("a request broke off")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _parse(message: bytes, descriptors: list[int]) -> Request:
    try:
        fields = json.loads(message)
    except ValueError as error:
        raise Refused(f"a request is no JSON: {error}") from error
    if len(descriptors) != 3 or not _is_request(fields):
        raise Refused("a request has not the fields or file descriptors of one")
    if fields["arguments"][: len(_COMMAND)] != _COMMAND:
        raise Refused("only shards are forked")
    names = ("program", "arguments", "environment", "folder")
    return Request(*(fields[name] for name in names), *descriptors)


def _is_request(fields: Any) -> bool:
    if not isinstance(fields, dict) or fields.keys() != {"program", "arguments", "environment", "folder"}:
        return False
    arguments, environment = fields["arguments"], fields["environment"]
    if not isinstance(arguments, list) or not isinstance(environment, dict):
        return False
    texts = (fields["program"], fields["folder"], *arguments, *environment.values())
    return all(isinstance(text, str) and "\0" not in text for text in texts)


def check(request: Request, connection: socket.socket, environment: Mapping[str, str]) -> None:
    """Raise Refused if a process that the other side starts would be another than one that is forked here.

    `environment`: the variables that the libraries here were imported with.
    """
    if Path(request.program).parent.resolve() != Path(sys.executable).parent.resolve():
        raise Refused(f"its Python is {sys.executable}, not {request.program}")
    wanted = request.environment
    for name in sorted(wanted.keys() | environment.keys()):
        if name not in _FREE and wanted.get(name) != environment.get(name):
            raise Refused(f"the variable {name} has another value there")
    pid, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    if uid not in (0, os.geteuid()):
        raise Refused(f"it belongs to user {os.geteuid()}, not to {uid}")
    try:
        ours, theirs = _surroundings(os.getpid()), _surroundings(pid)
    except OSError as error:
        raise Refused(f"it cannot see what its process inherits: {error}") from error
    for name, value in ours.items():
        if theirs[name] != value:
            raise Refused(f"its process inherits another value of {name}")


def _surroundings(pid: int) -> dict[str, str]:
    """The state that a process passes on to those that it starts, beside variables and open files."""
    folder = Path(f"/proc/{pid}")
    found = {it.name: os.readlink(it) for it in (folder / "ns").iterdir()}
    found["root"] = os.readlink(folder / "root")
    for name in ("cgroup", "limits", "oom_score_adj"):
        found[name] = (folder / name).read_text()
    for line in (folder / "status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in _INHERITED:
            found[name] = value.strip()
    fields = (folder / "stat").read_text().rsplit(") ", 1)[1].split()
    found["session"], found["niceness"], found["policy"] = fields[6 - 3], fields[19 - 3], fields[41 - 3]
    return found


def answer(connection: socket.socket, **fields: object) -> None:
    """Tell the launcher; one that is gone is told nothing."""
    with suppress(OSError):
        connection.sendall(json.dumps(fields).encode() + b"\n")
