"""A shard as a rank of a trainer's group, whose tensors go into a folder. Nothing here touches what is served.

What waits for the trainer is a process of its own (`network/trainer_group`), so that neither a step nor a call waits.
"""

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from signal import Signals
from typing import Any, NamedTuple

from penstock_server.base.errors import PenstockError, StartError, WeightsNotReceived, WeightsRefused
from penstock_server.files.checkpoint import Checkpoint
from penstock_server.files.received_folder import FILE, Layout, Place, make_folder, remove_folder
from penstock_server.files.same_model import check_tensor

logger = logging.getLogger(__name__)

_PROCESS = (sys.executable, "-P", "-m", "penstock_server.network.trainer_group")


class Meeting(NamedTuple):
    """Where the ranks of a trainer find each other, and which of them this one is."""

    host: str
    port: int
    name: str
    rank: int
    world_size: int
    timeout_s: float


class Announced(NamedTuple):
    """A tensor that the trainer is about to send."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Progress(NamedTuple):
    """How far a shard is."""

    is_busy: bool
    # Names that are yet to come before the folder is whole.
    missing: Sequence[str]


class Receiving:
    """The weights that one shard receives. Its methods return at once. For one thread at a time."""

    def __init__(self, served: Path, tensors: Callable[[], Checkpoint]) -> None:
        """`served`: the folder of the model; `tensors`: those that can be replaced, or StartError."""
        self._served, self._tensors = served, tensors
        self._rank: _Rank | None = None
        self._lock = threading.Lock()

    def join(self, meeting: Meeting) -> None:
        """Become a rank of this group, and of no other. Raises WeightsRefused where no weights could be used."""
        with self._lock:
            self._leave()
            try:
                layout = Layout(self._tensors())
            except StartError as error:
                raise WeightsRefused(str(error)) from None
            self._rank = _Rank(self._served, layout)
            self._rank.join(meeting)

    def receive(self, path: Path, tensors: Sequence[Announced]) -> None:
        """Have the tensors in a folder, in this order. Where one does not fit it leaves, and raises WeightsRefused."""
        self._with_rank(lambda rank: rank.receive(path, tensors))

    def progress(self) -> Progress:
        """How far it is; raises what ended it, and leaves then."""
        found: list[Progress] = []
        self._with_rank(lambda rank: found.append(rank.progress()))
        return found[0]

    def leave(self) -> None:
        """Be no rank of a group any more. What is not whole is removed."""
        with self._lock:
            self._leave()

    def _with_rank(self, act: "Callable[[_Rank], None]") -> None:
        with self._lock:
            if self._rank is None:
                raise WeightsNotReceived("a shard is not in the group: it was started again, or has left")
            try:
                act(self._rank)
            except PenstockError:
                self._leave()
                raise

    def _leave(self) -> None:
        if self._rank is not None:
            self._rank.close()
            self._rank = None


class _Folder:
    """The folder that is being received."""

    def __init__(self, path: Path, places: dict[str, Place]) -> None:
        self.path = path
        # By name: what is yet to come.
        self.missing = places
        # None: it is not known yet.
        self.is_mine: bool | None = None


class _Rank:
    """From joining to leaving."""

    def __init__(self, served: Path, layout: Layout) -> None:
        self._served, self._layout = served, layout
        self._receiver = _Receiver()
        self._folder: _Folder | None = None
        self._missing: Sequence[str] = ()
        self._work: Future[None] = Future()
        self._lock = threading.Lock()
        self._is_closed = False

    def join(self, meeting: Meeting) -> None:
        self._begin(lambda: self._receiver.ask(meeting._asdict()))

    def receive(self, path: Path, tensors: Sequence[Announced]) -> None:
        if not self._work.done():
            raise WeightsRefused("the tensors before these are still being received")
        if self._folder is None or self._folder.path != path:
            self._remove()
            self._folder = _Folder(path, dict(self._layout.places))
        folder = self._folder
        places = [self._expected(folder, tensor) for tensor in tensors]
        self._begin(lambda: self._receive(folder, places))

    def _expected(self, folder: _Folder, tensor: Announced) -> Place:
        shown = f"tensor {tensor.name}"
        try:
            check_tensor(self._layout.entries, shown, tensor.name, tensor.dtype, tensor.shape)
        except StartError as error:
            raise WeightsRefused(str(error)) from None
        place = folder.missing.pop(tensor.name, None)
        if place is None:
            yet = f", and {next(iter(folder.missing))} did not come yet" if folder.missing else ""
            raise WeightsRefused(f"{shown} comes twice in one update{yet}")
        return place

    def _receive(self, folder: _Folder, places: Sequence[Place]) -> None:
        if folder.is_mine is None:
            folder.is_mine = make_folder(folder.path, self._served, self._layout)
        file = str(folder.path / FILE) if folder.is_mine else None
        self._receiver.ask({"file": file, "places": places})
        self._missing = tuple(folder.missing)
        if not folder.missing:
            # Whoever asked for it has it now.
            self._folder = None

    def progress(self) -> Progress:
        if not self._work.done():
            return Progress(True, ())
        self._work.result()
        return Progress(False, self._missing)

    def close(self) -> None:
        """Ends what goes on; the thread that waits for it removes what it has made."""
        with self._lock:
            self._is_closed = True
            self._receiver.kill()
            if self._work.done():
                self._drop()

    def _begin(self, work: Callable[[], None]) -> None:
        self._work = Future()
        threading.Thread(target=self._do, args=(work, self._work), name="receiving", daemon=True).start()

    def _do(self, work: Callable[[], None], done: "Future[None]") -> None:
        error: BaseException | None = None
        try:
            work()
        except BaseException as raised:
            error = raised
        with self._lock:
            if self._is_closed or error is not None:
                self._drop()
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

    def _drop(self) -> None:
        self._receiver.close()
        self._remove()

    def _remove(self) -> None:
        if self._folder is not None and self._folder.is_mine:
            remove_folder(self._folder.path)
        self._folder = None


class _Receiver:
    """The process that is the rank."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(_PROCESS, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders, self._answers = self._process.stdin, self._process.stdout

    def ask(self, order: dict[str, Any]) -> None:
        """Have something done, and wait until it is; raises WeightsNotReceived."""
        try:
            self._orders.write(json.dumps(order).encode() + b"\n")
            self._orders.flush()
            line = self._answers.readline()
        except OSError:
            line = b""
        if not line:
            raise WeightsNotReceived(self._end_of_process())
        answer = json.loads(line)
        if "failed" in answer:
            logger.error("%s: %s", answer["failed"], answer.get("details", ""))
            raise WeightsNotReceived(answer["failed"])

    def _end_of_process(self) -> str:
        code = self._process.wait()
        if code == -Signals.SIGABRT:
            return "a tensor has more bytes than were announced"
        return f"the process that receives has ended ({code})"

    def kill(self) -> None:
        """End it, whatever it does; who waits for it is told."""
        self._process.kill()

    def close(self) -> None:
        """When nobody waits for it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._orders, self._answers):
            with suppress(OSError):
                pipe.close()
