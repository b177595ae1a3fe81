"""Pipeline parallel: a range of layers on some ranks, which take hidden states from those before and hand theirs on.

Ranks follow each other by stage. Rank t of a stage has part t of its layers, and a link to rank t of the stage before
and behind: all ranks of a stage have the same hidden states. What only the last stage finds, it tells to all ranks.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from penstock_server.base.config import GroupConfig
from penstock_server.network.distributed import Group


@dataclass(frozen=True, slots=True)
class Stage:
    """This rank's place among the stages."""

    number: int = 0
    count: int = 1
    # Where there are several: the ranks of this one, and all.
    part: Group | None = None
    everyone: Group | None = None
    # Of two ranks each; None where there is no such stage.
    before: Group | None = None
    behind: Group | None = None

    @property
    def is_first(self) -> bool:
        """Whether it has the embeddings."""
        return self.number == 0

    @property
    def is_last(self) -> bool:
        """Whether it has the head, and chooses tokens."""
        return self.number == self.count - 1

    @property
    def groups(self) -> tuple[Group, ...]:
        """Those that a forward pass goes over, where there are several stages."""
        return tuple(group for group in (self.part, self.before, self.behind) if group is not None)

    def layers(self, total: int) -> range:
        """Which of all layers are here. Some stages have one more than others: those in the middle, as the last has the
        head and chooses tokens, and the first has the embeddings."""
        each, num_longer = divmod(total, self.count)
        first_longer = (self.count - num_longer) // 2

        def first_of(stage: int) -> int:
            return stage * each + min(max(stage - first_longer, 0), num_longer)

        return range(first_of(self.number), first_of(self.number + 1))

    def receive(self, room: torch.Tensor) -> torch.Tensor:
        """What the stage before sends, of the shape and type of `room`."""
        assert self.before is not None, "the first stage embeds tokens"
        return self.before.broadcast(room, source=0)

    def send(self, hidden: torch.Tensor) -> None:
        """To the stage behind, if there is one."""
        if self.behind is not None:
            self.behind.broadcast(hidden, source=0)

    def tell(self, found: torch.Tensor) -> torch.Tensor:
        """What the last stage has found; other stages bring a tensor of the same shape."""
        if self.everyone is None:
            return found
        return self.everyone.broadcast(found, source=self.everyone.size - 1)


# All layers are here.
WHOLE = Stage()


class Ranks(NamedTuple):
    """A rank and the others."""

    everyone: Group
    # Those that a layer is divided among.
    part: Group
    stage: Stage


def meet(config: GroupConfig, device: torch.device) -> Ranks:
    """All ranks of the settings, and those of this stage."""
    everyone = Group(config, device)
    if config.num_stages == 1:
        return Ranks(everyone, everyone, WHOLE)
    size, world = config.ranks_per_stage, range(config.world_size)
    own = [everyone.among(world[first : first + size]) for first in world[::size]]
    # In one order: where two ranks meet, neither waits in another meeting that comes later.
    links = [everyone.among((rank, rank + size)) for rank in world[:-size]]
    part = own[config.stage]
    assert part is not None, "a rank is one of its stage"
    before = links[config.rank - size] if config.stage > 0 else None
    behind = links[config.rank] if config.stage < config.num_stages - 1 else None
    return Ranks(everyone, part, Stage(config.stage, config.num_stages, part, everyone, before, behind))
