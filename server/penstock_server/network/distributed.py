"""A group of ranks: sums over NCCL on GPUs and over shared memory on the CPU, none when the group is one rank.

Numbers that the host needs never go over NCCL, so that they do not wait for what runs on the device. Where the ops in C
are not there, or the ranks are on several machines, gloo stands in for shared memory.

Where the GPUs reach each other's memory, sums of few rows go through that, with the norm behind them
(`network/peer_memory`): each rank reads the shares of all, so there is one meeting in the place of several.

There is one communicator of NCCL from the start of a shard to its end: it has its memory before that for the cache is
measured, and captured graphs use the one that other steps use. A graph that holds it must be destroyed before `leave`.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import torch
from penstock_kernels import Peers, all_reduce, all_reduce_add_rms_norm, rms_norm
from penstock_kernels.native.exchange import Exchange, ExchangeFailed, is_supported

from penstock_server.base.config import GroupConfig
from penstock_server.base.errors import ShardFailed, StartError
from penstock_server.network.torch_collectives import TorchCollectives

Result = TypeVar("Result")

# The launcher gives up on a shard that loads too long; this only has to be no shorter.
LOAD_TIMEOUT_S = 1800.0
_CANNOT_MEET = "cannot meet the other ranks"


class Collectives(Protocol):
    """The collective operations of ranks. All ranks make the same calls in the same order."""

    def all_reduce(self, x: torch.Tensor) -> None:
        """The sum over all ranks, in place."""

    def all_gather(self, x: torch.Tensor) -> Iterable[torch.Tensor]:
        """The tensors of all ranks."""

    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """The tensor of the rank `source`; the others bring a tensor of the same shape."""

    def set_timeout(self, timeout_s: float) -> None:
        """From now on this is how long to wait for a rank that lives."""

    def leave(self) -> None:
        """Close the connections to the other ranks."""


class Leaves(Protocol):
    """A connection between ranks until they part."""

    def leave(self) -> None:
        """Close the connections to the other ranks."""


class Connections(NamedTuple):
    """How the ranks reach each other: for numbers of the host, and for tensors on the device."""

    host: Collectives
    device: Collectives


class Made(NamedTuple):
    """A collective that was made, and the shape and type of what the ranks brought."""

    make: Callable[[torch.Tensor], torch.Tensor]
    shape: torch.Size
    dtype: torch.dtype


class Group:
    """A rank's view of its group. Every collective must be called by all ranks in the same order."""

    def __init__(
        self,
        config: GroupConfig,
        device: torch.device,
        ranks: Sequence[int] | None = None,
        connections: Connections | None = None,
    ) -> None:
        """Without `ranks`, this one meets all others; `among` makes groups of some."""
        all_ranks = range(config.world_size)
        self._ranks = all_ranks if ranks is None else ranks
        self.rank, self.size = self._ranks.index(config.rank), len(self._ranks)
        self.config, self.device, self.connections = config, device, connections
        if ranks is None and self.size > 1:
            self.connections = self._tried(_CANNOT_MEET, connect, config, device)
        # Ranks of several stages wait for each other as long as a stage computes.
        is_of_one_stage = len({rank // config.ranks_per_stage for rank in self._ranks}) == 1
        self._timeout_s = config.timeout_s if is_of_one_stage else LOAD_TIMEOUT_S
        # Groups of some of its ranks, and what else ends with it.
        self._parts: list[Group] = []
        self._adopted: list[Leaves] = []
        # None: all sums go over the connections.
        self._peers: Peers | None = None
        self._kept: object = None
        # Every sum and broadcast, while the engine records them.
        self.made: list[Made] | None = None
        # NCCL connects in its first collective.
        self.all_reduce(torch.zeros(1, device=device))

    def among(self, ranks: Sequence[int]) -> "Group | None":
        """A group of some of these ranks, which ends with this one; None where this rank is none of them.

        All ranks make the same calls in the same order.
        """
        if len(ranks) == self.size:
            return self
        connections = None
        if len(ranks) > 1:
            assert self.connections is not None, "there are more ranks than these"
            all_of = (self.config, self.device, self.connections)
            connections = self._tried(_CANNOT_MEET, connect_some, *all_of, ranks)
        if self.config.rank not in ranks:
            return None
        part = Group(self.config, self.device, ranks, connections)
        self._parts.append(part)
        return part

    def adopt(self, connection: "Leaves") -> None:
        """Something between some of its ranks, which ends with it."""
        self._adopted.append(connection)

    def tried(self, meet: Callable[[], Result]) -> Result:
        """The result of `meet`; raises ShardFailed where ranks cannot meet."""
        return self._tried(_CANNOT_MEET, meet)

    def begin_steps(self) -> None:
        """All ranks are warm: from here a rank that does not take part in time counts as lost."""
        # Until here waits may be long: ranks load, and compute their first steps, at different speeds.
        self.gather_numbers(self.rank)
        for group in (self, *self._parts):
            group._set_timeout(group._timeout_s)

    def begin_loading(self) -> None:
        """Until steps begin again, waits may be long."""
        for group in (self, *self._parts):
            group._set_timeout(LOAD_TIMEOUT_S)

    def _set_timeout(self, timeout_s: float) -> None:
        for connection in set(self.connections or ()):
            connection.set_timeout(timeout_s)

    def share(self, total: int, what: str) -> int:
        """This rank's part of `total`, which must divide evenly."""
        if total % self.size:
            raise StartError(
                f"--num-shard: {what} {total} cannot be divided among {self.size} shards; use one that divides it"
            )
        return total // self.size

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, in place."""
        if self.connections is None:
            return x
        peers = self._peers_for(x)
        if peers is None:
            self._together(self.connections.device.all_reduce, x)
        else:
            all_reduce(x, peers)
        self._note(self.all_reduce, x)
        return x

    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """The tensor of the rank `source`; the others bring a tensor of the same shape, whatever it holds."""
        if self.connections is None:
            return x
        call = partial(self.connections.device.broadcast, source=source)
        found = self._together(call, x)
        self._note(partial(self.broadcast, source=source), x)
        return found

    def all_reduce_add_rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor, weight_offset: float
    ) -> torch.Tensor:
        """`rms_norm` of the sum over all ranks and of `residual`, which is updated in place."""
        peers = self._peers_for(x)
        if peers is None:
            return rms_norm(self.all_reduce(x), weight, eps, residual, weight_offset)
        normed = all_reduce_add_rms_norm(x, weight, eps, residual, weight_offset, peers)
        self._note(self.all_reduce, x)
        return normed

    def reach(self, peers: Peers, kept: object) -> None:
        """From now on sums that fit go through this memory. `kept` lives as long as the group."""
        self._peers, self._kept = peers, kept

    def _peers_for(self, x: torch.Tensor) -> Peers | None:
        """The peers through which `x` is summed, or None; it must be the same on all ranks, and so is the shape."""
        peers = self._peers
        return peers if peers is not None and peers.fits(x) and x.is_contiguous() else None

    def _note(self, make: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> None:
        if self.made is not None:
            self.made.append(Made(make, x.shape, x.dtype))

    def all_gather_columns(self, x: torch.Tensor) -> torch.Tensor:
        """[n, width] of each rank to [n, size * width]."""
        if self.connections is None:
            return x
        return torch.cat(tuple(self._together(self.connections.device.all_gather, x)), dim=-1)

    def gather_numbers(self, *numbers: int) -> list[tuple[int, ...]]:
        """Every rank's numbers, on every rank."""
        if self.connections is None:
            return [numbers]
        mine = torch.tensor(numbers, dtype=torch.int64)
        return [tuple(part.tolist()) for part in self._together(self.connections.host.all_gather, mine)]

    def leave(self) -> None:
        """Close the connections to the other ranks."""
        for part in (*self._parts, *self._adopted):
            part.leave()
        for connection in set(self.connections or ()):
            connection.leave()

    def _together(self, collective: Callable[[torch.Tensor], Result], x: torch.Tensor) -> Result:
        return self._tried("another rank is gone or stopped", collective, x)

    def _tried(self, failure: str, call: Callable[..., Result], *arguments: object) -> Result:
        try:
            return call(*arguments)
        except (RuntimeError, ValueError, OSError, ExchangeFailed) as error:
            raise ShardFailed(f"rank {self.rank}: {failure}: {_first_line(error)}") from error


def connect(config: GroupConfig, device: torch.device) -> Connections:
    """Meet the other ranks."""
    exchange = None
    if config.rendezvous is None and is_supported():
        assert config.rendezvous_dir is not None, "checked by the command line"
        exchange = Exchange(config.rendezvous_dir, config.rank, config.world_size, LOAD_TIMEOUT_S)
        if device.type == "cpu":
            return Connections(exchange, exchange)
    collectives = TorchCollectives(config, device, LOAD_TIMEOUT_S)
    return Connections(exchange or collectives, collectives)


def connect_some(
    config: GroupConfig, device: torch.device, of_all: Connections, ranks: Sequence[int]
) -> Connections | None:
    """The connections between some ranks, after all ranks have met. None where this rank is none of them."""
    exchange = None
    if isinstance(of_all.host, Exchange) and config.rank in ranks:
        assert config.rendezvous_dir is not None, "they met there"
        folder = config.rendezvous_dir / "-".join(map(str, ("ranks", *ranks)))
        folder.mkdir(exist_ok=True)
        exchange = Exchange(folder, ranks.index(config.rank), len(ranks), LOAD_TIMEOUT_S)
    if not isinstance(of_all.device, TorchCollectives):
        return None if exchange is None else Connections(exchange, exchange)
    collectives = of_all.device.among(ranks, LOAD_TIMEOUT_S)
    return Connections(exchange or collectives, collectives)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
