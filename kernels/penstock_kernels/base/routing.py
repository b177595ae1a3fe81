"""How a router scores, groups and weights experts, beyond the largest of a softmax."""

from typing import NamedTuple


class Routing(NamedTuple):
    """Facts of a router. The plain one takes the largest of a softmax over all experts.

    `sigmoid`: each expert is scored by itself. `num_groups`: experts lie in as many groups of the same size, of which a
    token chooses among the best `top_groups`; a group is as good as its best expert, or with `sums_pairs` as its best
    two together. `scale`: what the weights are multiplied by in the end.
    """

    sigmoid: bool = False
    num_groups: int = 1
    top_groups: int = 1
    sums_pairs: bool = False
    scale: float = 1.0


PLAIN = Routing()
