"""How guesses for one slot become a tree: those that are likeliest to count, each if those before it on its way do."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock_server.engine.likeliest import Guess
from penstock_server.engine.token_tree import ROOT, drafted_tree


@dataclass(slots=True)
class TreeGrowth:
    """All guesses so far. A guess counts with at most the chance of the one that it is behind."""

    token_ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)

    def add(self, parent: int, guesses: Sequence[Guess]) -> list[int]:
        """Guesses for the token behind another guess; their numbers."""
        before = 1.0 if parent == ROOT else self.chances[parent]
        first = len(self.parents)
        for guess in guesses:
            self.token_ids.append(guess.token_id)
            self.parents.append(parent)
            self.chances.append(before * guess.chance)
        return list(range(first, len(self.parents)))

    def depth(self, number: int) -> int:
        """How many guesses are on the way to this one, itself included."""
        depth = 1
        while self.parents[number] != ROOT:
            number, depth = self.parents[number], depth + 1
        return depth

    def worth_going_on(self, numbers: Sequence[int], size: int, most: int) -> list[int]:
        """The guesses of these, all of one depth, behind which one may be among the `size` likeliest, in their order.

        Measured by what the likeliest of them would give alone, if it went on as it began.
        """
        ranked = sorted(numbers, key=lambda number: -self.chances[number])
        missing = size - len(self.parents)
        if not ranked or (missing <= 0 and self.chances[ranked[0]] < self._least(size)):
            return []
        best = self.chances[ranked[0]]
        rate = best / self._before(ranked[0])
        least = best * rate ** max(0, missing - 1)
        return [number for number in ranked[:most] if self.chances[number] >= least]

    def _before(self, number: int) -> float:
        parent = self.parents[number]
        return 1.0 if parent == ROOT else self.chances[parent]

    def _least(self, size: int) -> float:
        """The least chance among the likeliest."""
        return heapq.nlargest(size, self.chances)[-1]

    def likeliest(self, size: int) -> tuple[int, ...]:
        """So many guesses as one tree, or the chain that it is."""
        chosen = sorted(sorted(range(len(self.parents)), key=lambda number: -self.chances[number])[:size])
        places = {number: place for place, number in enumerate(chosen)}
        parents = [places.get(self.parents[number], ROOT) for number in chosen]
        return drafted_tree([self.token_ids[number] for number in chosen], parents)


def product_tree(levels: Sequence[Sequence[Guess]], size: int) -> tuple[int, ...]:
    """The likeliest tree of guesses that do not know each other: those of a level are the same behind each of the level
    before.
    """
    growth = TreeGrowth()
    # Guesses that may be added next, by their chance: parent, level, place in the level.
    waiting = [(-guess.chance, ROOT, 0, place) for place, guess in enumerate(levels[0])]
    heapq.heapify(waiting)
    while waiting and len(growth.parents) < size:
        _, parent, level, place = heapq.heappop(waiting)
        [number] = growth.add(parent, [levels[level][place]])
        for behind, guess in enumerate(levels[level + 1] if level + 1 < len(levels) else ()):
            heapq.heappush(waiting, (-growth.chances[number] * guess.chance, number, level + 1, behind))
    return growth.likeliest(size)


def static_tree(
    levels: Sequence[Sequence[Guess]], choices: Sequence[Sequence[int]], size: int
) -> tuple[int, ...]:
    """A tree of a given form: each choice is a way by the ranks of its guesses; the first are the most important."""
    growth = TreeGrowth()
    numbers: dict[tuple[int, ...], int] = {(): ROOT}
    for choice in choices:
        way, parent = tuple(choice), numbers.get(tuple(choice[:-1]))
        is_known = len(way) <= len(levels) and way[-1] < len(levels[len(way) - 1])
        if parent is None or not is_known:
            continue
        [numbers[way]] = growth.add(parent, [levels[len(way) - 1][way[-1]]])
        if len(growth.parents) == size:
            break
    return drafted_tree(growth.token_ids, growth.parents)
