"""Collectives of PyTorch: NCCL between GPUs, and gloo on the CPU."""

import os
from collections.abc import Sequence
from copy import copy
from datetime import timedelta
from typing import Any, Protocol, runtime_checkable

import torch

from penstock_server.base.config import GroupConfig
from penstock_server.network.interfaces import interface_with

_RENDEZVOUS_FILE = "rendezvous"


@runtime_checkable
class Closes(Protocol):
    """A store with a connection."""

    def close(self) -> None:
        """End it."""


class TorchCollectives:
    """A rank's end of them. Ranks of one machine meet through a file, those of several at a launcher."""

    def __init__(self, config: GroupConfig, device: torch.device, timeout_s: float) -> None:
        # Imported here: a shard that does without starts faster.
        import torch.distributed as dist

        self._store, interface = _meet(config, timeout_s)
        # The backends have no argument for it: without this they may listen on every interface. NCCL takes a name for
        # the beginning of one, unless it is told otherwise.
        os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"] = interface, f"={interface}"
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            store=self._store,
            rank=config.rank,
            world_size=config.world_size,
            timeout=timedelta(seconds=timeout_s),
        )
        self._dist: Any = dist
        self._ranks: Sequence[int] = range(config.world_size)
        # None: all of them.
        self._group: Any = None

    def among(self, ranks: Sequence[int], timeout_s: float) -> "TorchCollectives":
        """The collectives of some of the ranks. All ranks make the same calls in the same order."""
        part = copy(self)
        part._ranks, part._store = ranks, None
        part._group = self._dist.new_group(ranks, timeout=timedelta(seconds=timeout_s))
        return part

    def all_reduce(self, x: torch.Tensor) -> None:
        """The sum over all ranks, in place. On a CPU added in the order of ranks, in float32 at least, so that no size
        of a batch and no way over the network changes it.
        """
        if x.is_cuda:
            self._dist.all_reduce(x, group=self._group)
            return
        first, *others = self.all_gather(x)
        total = first.to(torch.promote_types(x.dtype, torch.float32)) if x.is_floating_point() else first
        for other in others:
            total += other
        x.copy_(total)

    def all_gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of all ranks."""
        mine = x.contiguous()
        parts = [torch.empty_like(mine) for _ in self._ranks]
        self._dist.all_gather(parts, mine, group=self._group)
        return parts

    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """The tensor of the rank `source`; the others bring a tensor of the same shape."""
        found = x.contiguous()
        self._dist.broadcast(found, self._ranks[source], group=self._group)
        return found

    def send(self, x: torch.Tensor) -> None:
        """From the first of two ranks to the second, which takes it."""
        self._dist.send(x, self._ranks[1], group=self._group)

    def receive(self, room: torch.Tensor) -> None:
        """Receive the tensor that the first of two ranks sends."""
        self._dist.recv(room, self._ranks[0], group=self._group)

    def set_timeout(self, timeout_s: float) -> None:
        """From now on this is how long to wait for a rank that lives."""
        self._dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_s), self._group)

    def leave(self) -> None:
        """Close the connections to the other ranks."""
        self._dist.destroy_process_group(self._group)
        if isinstance(self._store, Closes):
            self._store.close()


def _meet(config: GroupConfig, timeout_s: float) -> tuple[Any, str]:
    """Where the ranks find each other, and the interface between them."""
    if config.rendezvous is None:
        from torch._C._distributed_c10d import FileStore

        assert config.rendezvous_dir is not None, "checked by the command line"
        return FileStore(str(config.rendezvous_dir.resolve() / _RENDEZVOUS_FILE), config.world_size), "lo"
    from penstock_server.network.rendezvous import LauncherStore

    store = LauncherStore(config.rendezvous, timeout_s)
    return store, interface_with(store.host)
