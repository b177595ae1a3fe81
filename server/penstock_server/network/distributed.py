"""The tensor-parallel group: collectives over NCCL on GPUs and gloo on the CPU, none when the group is one rank.

Numbers that the host needs always go over gloo, so that they do not wait for what runs on the device.

There is one communicator of NCCL from the start of a shard to its end: it has its memory before that for the cache is
measured, and captured graphs use the one that other steps use. A graph that holds it must be destroyed before `leave`.
"""

import os
from datetime import timedelta
from typing import Any

import torch

from penstock_server.base.config import GroupConfig
from penstock_server.base.errors import ShardFailed, StartError

_RENDEZVOUS_FILE = "rendezvous"
# The launcher gives up on a shard that loads too long; this only has to be no shorter.
_LOAD_TIMEOUT_S = 1800.0


class Group:
    """A rank's view of its group. Every collective must be called by all ranks in the same order."""

    def __init__(self, config: GroupConfig, device: torch.device) -> None:
        self.rank = config.rank
        self.size = config.world_size
        self._config = config
        self._dist: Any = _join(config, device) if config.world_size > 1 else None
        # Shape and type of every sum, while the engine records them.
        self.summed: list[tuple[torch.Size, torch.dtype]] | None = None
        # NCCL connects in its first collective.
        self.all_reduce(torch.zeros(1, device=device))

    def begin_steps(self) -> None:
        """All ranks are loaded: from here a rank that does not take part in time counts as lost."""
        if self._dist is not None:
            # Until here waits may be long: ranks load at different speeds.
            self.gather_numbers(self.rank)
            self._dist.distributed_c10d._set_pg_timeout(timedelta(seconds=self._config.timeout_s))

    def share(self, total: int, what: str) -> int:
        """This rank's part of `total`, which must divide evenly."""
        if total % self.size:
            raise StartError(
                f"{what} {total} cannot be divided among {self.size} shards; use a --num-shard dividing it"
            )
        return total // self.size

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, in place."""
        if self._dist is not None:
            self._call(self._dist.all_reduce, x)
            if self.summed is not None:
                self.summed.append((x.shape, x.dtype))
        return x

    def all_gather_columns(self, x: torch.Tensor) -> torch.Tensor:
        """[n, width] of each rank to [n, size * width]."""
        if self._dist is None:
            return x
        parts = [torch.empty_like(x) for _ in range(self.size)]
        self._call(self._dist.all_gather, parts, x.contiguous())
        return torch.cat(parts, dim=-1)

    def gather_numbers(self, *numbers: int) -> list[tuple[int, ...]]:
        """Every rank's numbers, on every rank."""
        if self._dist is None:
            return [numbers]
        mine = torch.tensor(numbers, dtype=torch.int64)
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        self._call(self._dist.all_gather, parts, mine)
        return [tuple(part.tolist()) for part in parts]

    def leave(self) -> None:
        """Close the connections to the other ranks."""
        if self._dist is not None:
            self._dist.destroy_process_group()

    def _call(self, collective: Any, *arguments: Any) -> None:
        try:
            collective(*arguments)
        except RuntimeError as error:
            raise ShardFailed(
                f"rank {self.rank}: another rank is gone or stopped: {_first_line(error)}"
            ) from error


def _join(config: GroupConfig, device: torch.device) -> Any:
    # Imported here: a single shard starts faster without it.
    import torch.distributed as dist

    assert config.rendezvous_dir is not None, "checked by the command line"
    # The backends have no argument for it: without this they may listen on every interface.
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = "lo"
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            init_method=f"file://{config.rendezvous_dir.resolve() / _RENDEZVOUS_FILE}",
            rank=config.rank,
            world_size=config.world_size,
            timeout=timedelta(seconds=_LOAD_TIMEOUT_S),
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise ShardFailed(f"rank {config.rank}: cannot meet the other ranks: {_first_line(error)}") from error
    return dist


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
