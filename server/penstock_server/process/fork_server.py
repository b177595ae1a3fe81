"""Imports all that a shard needs, once, and forks a shard for each request. Run by `python -m`.

Its stdin is the Unix socket that it listens on. A connection is one shard: a request, then an answer with the process
id, and one with the status that the process ended with; if the launcher closes it, the shard is killed with all that it
started. What is wrong with the first request is found before torch is imported.

It has one thread, and CUDA is not initialised: neither would outlive a fork. Threads that a library has made by then
are its own matter: OpenBLAS ends its own before a fork and makes them anew.
"""

import gc
import logging
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from penstock_server.base import log, parent
from penstock_server.base.errors import FAILED
from penstock_server.process import cli
from penstock_server.process.flags import parse_fork_server
from penstock_server.process.fork_request import Refused, Request, answer, check, receive
from penstock_server.process.leave import leave
from penstock_server.process.title import Title

logger = logging.getLogger(__name__)

_NAME = "penstock_server.process.fork_server"
_HUNG_UP = select.POLLHUP | select.POLLERR | select.POLLRDHUP


class _Asked(NamedTuple):
    """A request, and who waits for what comes of it."""

    connection: socket.socket
    request: Request


class ForkServer:
    """Runs until the launcher's end of `parent_pipe` closes; then it kills what it has forked."""

    def __init__(
        self, listener: socket.socket, parent_pipe: int, title: Title, is_checked: bool = False
    ) -> None:
        """`is_checked`: other shards have been started like those to come."""
        self._environment = dict(os.environ)
        self._title = title
        self._listener, self._parent_pipe = listener, parent_pipe
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # In the order of their requests.
        self._asked: list[_Asked] = []
        # By process id. Without a connection, nobody waits for its end.
        self._running: dict[int, socket.socket | None] = {}
        # The process that checks the first request, and whether it found nothing.
        self._checking: int | None = None
        self._is_checked, self._is_loaded = is_checked, False
        self._poll = select.poll()
        for descriptor in (self._listener.fileno(), self._woken, self._parent_pipe):
            self._poll.register(descriptor, select.POLLIN)

    def serve(self) -> NoReturn:
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _woken_by)
        self._proceed()
        while True:
            # While libraries were imported, some of those who asked may have gone.
            happened = dict(self._poll.poll(0 if self._asked and self._is_loaded else None))
            own = (self._parent_pipe, self._woken, self._listener.fileno())
            # These first: what is closed below leaves its number to the next.
            for descriptor in happened.keys() - own:
                self._hang_up(descriptor)
            if self._parent_pipe in happened:
                self._end()
            if self._woken in happened:
                os.read(self._woken, 4096)
                self._reap()
            if self._listener.fileno() in happened:
                self._accept()
            self._proceed()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # no file descriptor is left, or it has gone
        try:
            request = receive(connection, lambda it: check(it, connection, self._environment))
        except Refused as error:
            answer(connection, refused=str(error))
            connection.close()
            return
        self._poll.register(connection, _HUNG_UP)
        self._asked.append(_Asked(connection, request))

    def _proceed(self) -> None:
        if self._is_loaded:
            while self._asked:
                self._fork_shard(self._asked[0])
                del self._asked[0]
        elif self._is_checked:
            _load()
            self._is_loaded = True
        elif self._asked and self._checking is None:
            self._checking = self._fork(self._asked[0].request, cli.check)

    def _fork_shard(self, asked: _Asked) -> None:
        try:
            pid = self._fork(asked.request, lambda flags: cli.main(flags, is_forked=True))
        except OSError as error:
            answer(asked.connection, refused=f"no process can be made: {error}")
            self._forget(asked.connection)
        else:
            self._running[pid] = asked.connection
            answer(asked.connection, pid=pid)
        asked.request.close()

    def _fork(self, request: Request, run: Callable[[list[str]], int]) -> int:
        assert threading.active_count() == 1, "a thread would be lost"
        pid = os.fork()
        if pid == 0:
            self._become(request, run)
        # Both do it, so that each finds it done.
        with suppress(OSError):
            os.setpgid(pid, pid)
        return pid

    def _become(self, request: Request, run: Callable[[list[str]], int]) -> NoReturn:
        """Go on as the process of the request: with its own group, files, variables and folder."""

        def begin() -> int:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._close(request)
            os.dup2(request.stdout, 1)
            os.dup2(request.stderr, 2)
            os.close(request.stdout)
            os.close(request.stderr)
            os.environ.clear()
            os.environ.update(request.environment)
            os.chdir(request.folder)
            tempfile.tempdir = None  # found by the variables
            self._title.write(request.command_line)
            sys.argv[1:] = request.flags
            return run(request.flags)

        try:
            leave(_exit_code(begin))
        finally:
            os._exit(FAILED)

    def _close(self, kept: Request) -> None:
        """Whatever the fork server has open and a shard has not."""
        for asked in self._asked:
            asked.connection.close()
            if asked.request is not kept:
                asked.request.close()
        for connection in self._running.values():
            if connection is not None:
                connection.close()
        self._listener.close()
        for descriptor in (self._parent_pipe, self._woken, self._waker):
            os.close(descriptor)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._checking:
                self._on_checked(status)
            elif (connection := self._running.pop(pid, None)) is not None:
                answer(connection, status=status)
                self._forget(connection)

    def _on_checked(self, status: int) -> None:
        self._checking = None
        if status == 0:
            self._is_checked = True
        elif self._asked:
            connection, request = self._asked.pop(0)
            request.close()
            answer(connection, status=status)
            self._forget(connection)

    def _hang_up(self, descriptor: int) -> None:
        """The launcher does not want the process of this connection any more, or is gone."""
        for pid, connection in self._running.items():
            if connection is not None and connection.fileno() == descriptor:
                _kill(pid)
                self._running[pid] = None
                self._forget(connection)
                return
        for number, (connection, request) in enumerate(self._asked):
            if connection.fileno() == descriptor:
                if number == 0 and self._checking is not None:
                    _kill(self._checking)
                    self._running[self._checking], self._checking = None, None
                del self._asked[number]
                request.close()
                self._forget(connection)
                return

    def _forget(self, connection: socket.socket) -> None:
        self._poll.unregister(connection)
        connection.close()

    def _end(self) -> NoReturn:
        """Also one that is stopped, which cannot end by itself."""
        for pid in (*self._running, self._checking):
            if pid is not None:
                _kill(pid)
        os._exit(0)


def _load() -> None:
    # An import takes seconds, in which nobody looks at the pipe.
    parent.at_end_of_parent(signal.SIGKILL)
    with log.stage(logger, "import"):
        cli.load_libraries()
    parent.at_end_of_parent(signal.SIGCONT)
    _check_devices()
    gc.collect()
    gc.freeze()


def _check_devices() -> None:
    """Raise RuntimeError if this process has begun to use a GPU: a process forked from it could not go on with it."""
    import torch

    opened = [os.readlink(it) for it in Path("/proc/self/fd").iterdir() if it.is_symlink()]
    if torch.cuda.is_initialized() or any(name.startswith("/dev/nvidia") for name in opened):  # type: ignore[no-untyped-call]
        raise RuntimeError("an import has initialised CUDA, which does not outlive a fork")


def _exit_code(run: Callable[[], int]) -> int:
    """The exit code, as Python has it for a program."""
    try:
        return run()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else FAILED if end.code else 0
    except BaseException:
        traceback.print_exc()
        return FAILED


def _kill(group: int) -> None:
    with suppress(OSError):
        os.killpg(group, signal.SIGKILL)


def _woken_by(_number: int, _frame: object) -> None:
    """A signal without a handler writes no byte."""


def main(argv: list[str]) -> NoReturn:
    flags = parse_fork_server(argv)
    # Even if it is stopped then, it has to look at the pipe.
    parent.at_end_of_parent(signal.SIGCONT)
    log.configure(flags.json_output, flags.log_level)
    title = Title()
    title.write([sys.executable, "-P", "-m", _NAME, *(word for word in argv if word != flags.room)])
    listener = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    ForkServer(listener, flags.parent_pipe_fd, title, flags.checked).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
