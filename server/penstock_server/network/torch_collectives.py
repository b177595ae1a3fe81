"""Collectives of PyTorch: NCCL between GPUs, and gloo on the CPU."""

import os
from datetime import timedelta
from typing import Any

import torch

from penstock_server.base.config import GroupConfig

_RENDEZVOUS_FILE = "rendezvous"


class TorchCollectives:
    """A rank's end of them. The ranks meet through a file."""

    def __init__(self, config: GroupConfig, device: torch.device, timeout_s: float) -> None:
        # Imported here: a shard that does without starts faster.
        import torch.distributed as dist

        assert config.rendezvous_dir is not None, "checked by the command line"
        # The backends have no argument for it: without this they may listen on every interface.
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = "lo"
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            init_method=f"file://{config.rendezvous_dir.resolve() / _RENDEZVOUS_FILE}",
            rank=config.rank,
            world_size=config.world_size,
            timeout=timedelta(seconds=timeout_s),
        )
        self._dist: Any = dist
        self._size = config.world_size

    def all_reduce(self, x: torch.Tensor) -> None:
        """The sum over all ranks, in place."""
        self._dist.all_reduce(x)

    def all_gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        """What each rank brought."""
        parts = [torch.empty_like(x) for _ in range(self._size)]
        self._dist.all_gather(parts, x.contiguous())
        return parts

    def set_timeout(self, timeout_s: float) -> None:
        """From now on this is how long to wait for a rank that lives."""
        self._dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_s))

    def leave(self) -> None:
        """Close the connections to the other ranks."""
        self._dist.destroy_process_group()
