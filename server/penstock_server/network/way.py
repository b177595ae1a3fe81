"""A way from one rank to another: what is sent waits there until the other takes it, so that who sends goes on.

Numbers of the host and, on a CPU, tensors go over memory that both share, or over gloo where they are on two machines.
On GPUs tensors go over NCCL, in the order of the device's work.
"""

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

import torch
from penstock_kernels.native.channel import Channel as SharedChannel
from penstock_kernels.native.exchange import Exchange, ExchangeFailed

from penstock_server.base.config import GroupConfig
from penstock_server.base.errors import ShardFailed
from penstock_server.network import distributed
from penstock_server.network.distributed import Group, Made
from penstock_server.network.torch_collectives import TorchCollectives

Result = TypeVar("Result")


class Channel(Protocol):
    """A channel for messages of the host. One end puts, the other takes, in the same order."""

    def put(self, x: torch.Tensor) -> None:
        """Send this behind what was sent before."""

    def take(self, room: torch.Tensor) -> None:
        """Fill this with what came next; waits for it."""

    def take_numbers(self) -> list[int]:
        """The next message, of any size, of int64; waits for it."""

    def has_come(self) -> bool:
        """Whether there is something to take; true where only waiting can tell."""

    def wait(self) -> None:
        """Wait until there is something to take."""

    def leave(self) -> None:
        """Close the connection."""


class Way:
    """An end of it."""

    def __init__(self, config: GroupConfig, channel: Channel, tensors: TorchCollectives | None) -> None:
        """`tensors`: what they go over between GPUs, from rank 0 of two."""
        self._rank = config.rank
        self._channel = channel
        self._tensors = tensors
        # Numbers that are to be taken again.
        self._put_back: list[int] | None = None
        # Every tensor sent or received, while the engine records them.
        self.made: list[Made] | None = None

    def put(self, *numbers: int) -> None:
        """Send numbers of the host."""
        self._tried(self._channel.put, torch.tensor(numbers, dtype=torch.int64))

    def take(self) -> list[int]:
        """The numbers that came next; waits for them."""
        found, self._put_back = self._put_back, None
        return self._tried(self._channel.take_numbers) if found is None else found

    def put_back(self, numbers: list[int]) -> None:
        """These were taken too early, and come next again."""
        self._put_back = numbers

    def has_come(self) -> bool:
        """Whether there are some; true where only waiting can tell."""
        return self._put_back is not None or self._channel.has_come()

    def wait_for_tensor(self) -> None:
        """Wait until the next tensor is there, where the host receives it."""
        if self._tensors is None:
            self._tried(self._channel.wait)

    def send(self, x: torch.Tensor) -> torch.Tensor:
        """A tensor on the device. Returns it."""
        if self._tensors is None:
            self._tried(self._channel.put, x)
        else:
            self._tried(self._tensors.broadcast, x, 0)
        self._note(self.send, x)
        return x

    def receive(self, room: torch.Tensor) -> torch.Tensor:
        """The tensor that came next, of the shape and type of `room`, which is overwritten."""
        if self._tensors is None:
            self._tried(self._channel.take, room)
        else:
            room = self._tried(self._tensors.broadcast, room, 0)
        self._note(self.receive, room)
        return room

    def leave(self) -> None:
        """Close the connections."""
        self._channel.leave()
        if self._tensors is not None:
            self._tensors.leave()

    def _note(self, make: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> None:
        if self.made is not None:
            self.made.append(Made(make, x.shape, x.dtype))

    def _tried(self, call: Callable[..., Result], *arguments: object) -> Result:
        try:
            return call(*arguments)
        except (RuntimeError, ValueError, OSError, ExchangeFailed) as error:
            reason = str(error).strip().split("\n", 1)[0]
            raise ShardFailed(f"rank {self._rank}: another rank is gone or stopped: {reason}") from error


class TorchChannel:
    """Messages over gloo. What is sent is sent by a thread of its own, as gloo waits for who takes it."""

    def __init__(self, between: TorchCollectives, is_source: bool) -> None:
        self._between = between
        self._failure: Exception | None = None
        # The size of the next message, if it is known already.
        self._size: int | None = None
        self._outbox: SimpleQueue[torch.Tensor | None] = SimpleQueue()
        if is_source:
            threading.Thread(target=self._send_all, name="way", daemon=True).start()

    def put(self, x: torch.Tensor) -> None:
        """See `Channel`."""
        if self._failure is not None:
            raise self._failure
        sent = x.detach().contiguous().clone()
        self._outbox.put(
            sent.view(-1).view(torch.uint8) if sent.numel() else torch.empty(0, dtype=torch.uint8)
        )

    def take(self, room: torch.Tensor) -> None:
        """See `Channel`."""
        num_bytes = room.numel() * room.element_size()
        if self._next_size() != num_bytes:
            raise ValueError("another size was sent")
        if num_bytes:
            self._between.receive(room.view(-1).view(torch.uint8))

    def take_numbers(self) -> list[int]:
        """See `Channel`."""
        found = torch.empty(self._next_size() // 8, dtype=torch.int64)
        if found.numel():
            self._between.receive(found.view(torch.uint8))
        return found.tolist()

    def has_come(self) -> bool:
        """See `Channel`."""
        return True

    def leave(self) -> None:
        """See `Channel`."""
        self._outbox.put(None)
        self._between.leave()

    def wait(self) -> None:
        """See `Channel`."""
        if self._size is None:
            size = torch.empty(1, dtype=torch.int64)
            self._between.receive(size)
            self._size = int(size)

    def _next_size(self) -> int:
        self.wait()
        found, self._size = self._size, None
        assert found is not None, "it was waited for"
        return found

    def _send_all(self) -> None:
        while (x := self._outbox.get()) is not None:
            try:
                self._between.send(torch.tensor([x.numel()]))
                if x.numel():
                    self._between.send(x)
            except (RuntimeError, ValueError) as error:  # it belongs to who sends next
                self._failure = error
                return


def way(group: Group, source: int, target: int) -> Way | None:
    """From one rank of a group to another, which ends with it; None where this rank is neither.

    All ranks make the same calls in the same order.
    """
    config, connections = group.config, group.connections
    assert connections is not None, "there are two ranks"
    ends = (source, target)
    is_here = config.rank in ends
    collectives = connections.device if isinstance(connections.device, TorchCollectives) else None
    is_shared = isinstance(connections.host, Exchange)
    over_host = (
        None if is_shared or collectives is None else collectives.among(ends, distributed.LOAD_TIMEOUT_S)
    )
    on_device = collectives is not None and group.device.type == "cuda"
    tensors = (
        collectives.among(ends, distributed.LOAD_TIMEOUT_S) if on_device and collectives is not None else None
    )
    if not is_here:
        return None
    found = Way(config, group.tried(partial(_channel, config, ends, over_host)), tensors)
    group.adopt(found)
    return found


def _channel(config: GroupConfig, ends: tuple[int, int], over_host: Any) -> Channel:
    source, target = ends
    if over_host is not None:
        return TorchChannel(over_host, config.rank == source)
    assert config.rendezvous_dir is not None, "they met there"
    folder = config.rendezvous_dir / f"way-{source}-{target}"
    folder.mkdir(exist_ok=True)
    return SharedChannel(folder, source, target, config.rank, distributed.LOAD_TIMEOUT_S)
