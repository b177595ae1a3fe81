"""Drafted tokens that are a tree: several guesses for a position, each of which may have guesses behind it.

Like a chain it is the tuple of its tokens, and these have places one after the other: in the step, in the row of the
slot and in the cache. But a token's position is that of its depth, and it sees its ancestors alone. Where a step has
computed a tree, the tokens that count are moved to the places of their positions.
"""

from collections.abc import Iterable, Sequence

# The parent of what is behind the last token of the slot.
ROOT = -1
_ALL_SEEN = -1


class TokenTree(tuple[int, ...]):
    """The tokens, of which each knows its parent by number. Parents come first."""

    parents: tuple[int, ...]

    def __new__(cls, token_ids: Iterable[int], parents: Sequence[int]) -> "TokenTree":
        tree = super().__new__(cls, token_ids)
        tree.parents = tuple(parents)
        return tree

    @property
    def depths(self) -> list[int]:
        """The depth of each token, from 1 on."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return depths

    @property
    def seen(self) -> list[int]:
        """The places that each token sees, as bits, as in `AttentionSpans.tree`."""
        return [seen_bits(self.parents, number) for number in range(len(self))]


def drafted_tree(token_ids: Sequence[int], parents: Sequence[int]) -> tuple[int, ...]:
    """A tree, or the chain that it is."""
    is_chain = all(parent == number - 1 for number, parent in enumerate(parents))
    return tuple(token_ids) if is_chain else TokenTree(token_ids, parents)


def seen_bits(parents: Sequence[int], number: int) -> int:
    """All but the tokens before this one that are not its ancestors."""
    hidden, ancestor = (1 << (number + 1)) - 1, number
    while ancestor != ROOT:
        hidden &= ~(1 << (number - ancestor))
        ancestor = parents[ancestor]
    # Bit `number + 1` and those behind it are the last token of the slot and what is before it.
    return _ALL_SEEN ^ hidden


def right_path(drafted: tuple[int, ...], chosen: Sequence[int], are_finite: Sequence[bool]) -> list[int]:
    """The numbers of the drafted tokens that are right, by what each row chose: the slot's last token's is the first.

    A row that got no token is behind no right draft: it fails again in the next step, as the first row of its slot.
    """
    path: list[int] = []
    row = 0
    while are_finite[row]:
        number = _child(drafted, row - 1, chosen[row])
        if number is None or not are_finite[number + 1]:
            break
        path.append(number)
        row = number + 1
    return path


def is_open(drafted: tuple[int, ...], path: Sequence[int]) -> bool:
    """Whether anything was drafted behind this path."""
    last = path[-1] if path else ROOT
    return last in drafted.parents if isinstance(drafted, TokenTree) else last + 1 < len(drafted)


def _child(drafted: tuple[int, ...], parent: int, token_id: int) -> int | None:
    if isinstance(drafted, TokenTree):
        children = (number for number, of in enumerate(drafted.parents) if of == parent)
        return next((number for number in children if drafted[number] == token_id), None)
    number = parent + 1
    return number if number < len(drafted) and drafted[number] == token_id else None
