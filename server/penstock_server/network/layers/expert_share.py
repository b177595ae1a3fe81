"""Which part of the experts of a layer a rank has: a slice of every expert, or whole experts of its own.

Of whole experts ranks have ranges that follow each other. Where experts do not divide among the ranks, some ranges have
one more than others; where there are more ranks than experts, some have none.
"""

from typing import NamedTuple

from penstock_kernels import ExpertPart

from penstock_server.architectures.spec import MoeSpec
from penstock_server.network.layers.placement import Placement


class ExpertShare(NamedTuple):
    """Experts, and of each of them the same range of its inner numbers."""

    experts: range
    inner: range
    num_experts: int

    @property
    def part(self) -> ExpertPart | None:
        """The experts of this rank, as the products take them; None: all experts."""
        is_all = len(self.experts) == self.num_experts
        return None if is_all else ExpertPart(self.experts.start, self.num_experts)


def share_experts(moe: MoeSpec, placement: Placement) -> ExpertShare:
    """This rank's part of the experts of a layer."""
    group, count = placement.group, moe.num_experts
    if placement.expert_parallel:
        return ExpertShare(experts_of(count, group.rank, group.size), range(moe.expert_size), count)
    size = group.share(moe.expert_size, "size of an expert")
    return ExpertShare(range(count), range(group.rank * size, (group.rank + 1) * size), count)


def experts_of(count: int, rank: int, size: int) -> range:
    """The whole experts of a rank."""
    return range(rank * count // size, (rank + 1) * count // size)
