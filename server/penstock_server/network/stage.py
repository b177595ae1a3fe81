"""Pipeline parallel: a range of layers on some ranks, which take hidden states from those before and hand theirs on.

Ranks follow each other by stage. Rank t of a stage has part t of its layers, a way to rank t of the stage behind, and
one from rank t of the last stage, which tells what it has chosen: all ranks of a stage have the same hidden states.
Nothing on these ways waits for who takes it, so that each stage computes another step.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from penstock_server.base.config import GroupConfig
from penstock_server.network.distributed import Group
from penstock_server.network.forward_input import Taps
from penstock_server.network.way import Way, way


@dataclass(frozen=True, slots=True)
class Stage:
    """This rank's place among the stages."""

    number: int = 0
    count: int = 1
    # Where there are several: the ranks of this one.
    part: Group | None = None
    # From the stage before and to the one behind; None where there is no such stage.
    before: Way | None = None
    behind: Way | None = None
    # From the last stage, where this is another one; where it is the last, to all others.
    told: Way | None = None
    tells: tuple[Way, ...] = ()
    # Whether the first stage has the head, too, because who drafts there scores tokens with it.
    drafts_with_head: bool = False

    @property
    def is_first(self) -> bool:
        """Whether it has the embeddings, and drafts."""
        return self.number == 0

    @property
    def is_last(self) -> bool:
        """Whether it chooses tokens."""
        return self.number == self.count - 1

    @property
    def has_head(self) -> bool:
        """Whether it has the head and the norm before it."""
        return self.is_last or (self.is_first and self.drafts_with_head)

    @property
    def in_pass(self) -> tuple[Group | Way, ...]:
        """The groups and ways that a forward pass uses, where there are several stages."""
        return tuple(each for each in (self.part, self.before, self.behind) if each is not None)

    def layers(self, total: int) -> range:
        """Which of all layers are here. Some stages have one more than others: those in the middle, as the last has the
        head and chooses tokens, and the first has the embeddings."""
        each, num_longer = divmod(total, self.count)
        first_longer = (self.count - num_longer) // 2

        def first_of(stage: int) -> int:
            return stage * each + min(max(stage - first_longer, 0), num_longer)

        return range(first_of(self.number), first_of(self.number + 1))

    def receive(self, room: torch.Tensor) -> torch.Tensor:
        """Receive the hidden states from the stage before, of the shape and type of `room`."""
        assert self.before is not None, "the first stage embeds tokens"
        return self.before.receive(room)

    def send(self, hidden: torch.Tensor) -> None:
        """Send hidden states to the stage behind, if there is one."""
        if self.behind is not None:
            self.behind.send(hidden)

    def carry(self, taps: Taps, num_layers: int) -> None:
        """Take over the hidden states that the stages before left, and hand all of them on.

        `num_layers`: of the model, in all stages.
        """
        own, sizes = self.layers(num_layers), taps.states.shape
        is_own = [layer in own or (layer == num_layers and self.is_last) for layer in taps.layers]
        if self.before is not None:
            rows = taps.states.new_zeros(sizes[1], sizes[0] * sizes[2])
            found = unrolled(self.before.receive(rows), sizes[0])
            for place, theirs, is_mine in zip(taps.states, found, is_own, strict=True):
                if not is_mine:
                    place.copy_(theirs)
        if self.behind is not None:
            self.behind.send(rolled(taps.states))


def rolled(states: torch.Tensor) -> torch.Tensor:
    """[num_taps, num_tokens, size] as they go from stage to stage: a row for each token."""
    return states.transpose(0, 1).flatten(1).contiguous()


def unrolled(rows: torch.Tensor, num_taps: int) -> torch.Tensor:
    """The inverse of `rolled`."""
    return rows.view(len(rows), num_taps, rows.shape[1] // num_taps).transpose(0, 1)


# All layers are here.
WHOLE = Stage()


class Ranks(NamedTuple):
    """A rank and the others."""

    everyone: Group
    # The ranks that a layer is divided among.
    part: Group
    stage: Stage


def meet(config: GroupConfig, device: torch.device) -> Ranks:
    """All ranks of the settings, and those of this stage."""
    everyone = Group(config, device)
    if config.num_stages == 1:
        return Ranks(everyone, everyone, WHOLE)
    size, world, mine = config.ranks_per_stage, range(config.world_size), config.rank
    # All in one order: where two ranks meet, neither waits in another meeting that comes later.
    own = [everyone.among(world[first : first + size]) for first in world[::size]]
    onward = {(rank, rank + size): way(everyone, rank, rank + size) for rank in world[:-size]}
    back = {pair: way(everyone, *pair) for pair in ways_back(config)}
    part = own[config.stage]
    assert part is not None, "a rank is one of its stage"
    tells = tuple(each for (source, _), each in back.items() if source == mine and each is not None)
    teller = world[-size:][config.part]
    ends = (onward.get((mine - size, mine)), onward.get((mine, mine + size)), back.get((teller, mine)))
    return Ranks(everyone, part, Stage(config.stage, config.num_stages, part, *ends, tells))


def ways_back(config: GroupConfig) -> list[tuple[int, int]]:
    """From each rank of the last stage to its fellows in all others."""
    size, world = config.ranks_per_stage, range(config.world_size)
    return [(teller, rank) for teller in world[-size:] for rank in world[teller % size : -size : size]]
