"""A process that is one rank of a trainer's group: it receives tensors into a file, and ends when its shard does.

It is not the shard itself: gloo ends a process to which more bytes are sent than it expects, and its waits cannot be
taken back. Orders and answers are lines of JSON on stdin and stdout. Nothing is unpickled: what comes is bytes, in
buffers of known size.
"""

import json
import mmap
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, TextIO

import torch
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, TCPStore

from penstock_server.network.interfaces import interface_with

_TRAINER = 0
_MARK_BYTES = 16
# A mark that is shorter could be there by chance.
_MIN_MARK_BYTES = 8
# Waits for others end about then, not to the millisecond.
_EARLY_S = 0.5


class SentLess(Exception):
    """A tensor has fewer bytes than were announced, which gloo does not notice."""


class TrainerGroup:
    """This process in the group."""

    def __init__(self, host: str, port: int, name: str, rank: int, world_size: int, timeout_s: float) -> None:
        """Meet the others: the trainer, which has the store, and further shards."""
        timeout = timedelta(seconds=timeout_s)
        store = TCPStore(host, port, world_size, is_master=False, timeout=timeout)
        # The backend has no argument for it: without this it may listen on another interface than that to the trainer.
        os.environ["GLOO_SOCKET_IFNAME"] = interface_with(_own_address(host, port))
        # The prefixes that PyTorch gives the store for a group with a name, and for the processor in it.
        parts = PrefixStore("cpu/", PrefixStore(f"{name}/", PrefixStore(name, store)))
        self._group: Any = ProcessGroupGloo(parts, rank, world_size, timeout)

    def receive(self, file: str | None, places: Sequence[tuple[int, int]]) -> None:
        """Receive the trainer's broadcasts at these offsets and lengths of the file; None: they are dropped."""
        largest = max((num_bytes for _offset, num_bytes in places), default=0)
        # Never closed by hand: a thread of gloo may still hold a part of it.
        memory = bytearray(largest) if file is None else _mapped(file)
        for offset, num_bytes in places:
            self._receive_one(_part(memory, 0 if file is None else offset, num_bytes))

    def _receive_one(self, target: torch.Tensor) -> None:
        mark = torch.frombuffer(bytearray(secrets.token_bytes(_MARK_BYTES)), dtype=torch.uint8)
        end = target[-_MARK_BYTES:]
        end.copy_(mark[: len(end)])
        self._group.broadcast(target, _TRAINER).wait()
        if len(end) >= _MIN_MARK_BYTES and torch.equal(end, mark[: len(end)]):
            raise SentLess


def _mapped(file: str) -> Any:
    with open(file, "r+b") as stream:
        return mmap.mmap(stream.fileno(), 0)


def _part(memory: Any, offset: int, num_bytes: int) -> torch.Tensor:
    if num_bytes == 0:  # which is broadcast, too
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(memory, dtype=torch.uint8, count=num_bytes, offset=offset)


def _own_address(host: str, port: int) -> str:
    """The address of this machine that reaches the trainer. Nothing is sent."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as asked:
        asked.connect((host, port))
        return str(asked.getsockname()[0])


class _Orders:
    """From the shard. When it is gone, this process ends, whatever it waits for."""

    def __init__(self) -> None:
        self._lines: SimpleQueue[str] = SimpleQueue()
        threading.Thread(target=self._read, name="orders", daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            self._lines.put(line)
        os._exit(0)

    def take(self) -> dict[str, Any]:
        """The next one."""
        order: dict[str, Any] = json.loads(self._lines.get())
        return order


def _serve(orders: _Orders, answers: TextIO) -> None:
    """Answer orders until something fails."""
    group, timeout_s = None, 0.0
    while True:
        order, begun = orders.take(), time.monotonic()
        answer: dict[str, Any] = {"done": True}
        try:
            if group is None:
                timeout_s = order["timeout_s"]
                group = TrainerGroup(**order)
            else:
                group.receive(order["file"], order["places"])
        except SentLess:
            answer = {"failed": "a tensor has fewer bytes than were announced"}
        except FileNotFoundError:
            answer = {"failed": "the folder with what came before is gone"}
        except (RuntimeError, ValueError, OSError) as error:
            waited_s = time.monotonic() - begun
            answer = {"failed": _reason(group, waited_s, timeout_s), "details": str(error)}
        print(json.dumps(answer), file=answers, flush=True)
        if "failed" in answer:
            return


def _reason(group: TrainerGroup | None, waited_s: float, timeout_s: float) -> str:
    if waited_s < timeout_s - _EARLY_S:
        return "the trainer, or another rank of its group, is gone"
    what = "the ranks of the group did not meet" if group is None else "a tensor did not come"
    return f"{what} within {timeout_s:g} s (--trainer-timeout)"


def main() -> None:
    """Answer orders."""
    # PyTorch writes lines of its own to stdout.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    _serve(_Orders(), answers)
    # Threads of gloo may wait for what does not come.
    os._exit(1)


if __name__ == "__main__":
    main()
