"""How often drafts of a slot are right. That follows from outcomes alone, so it is the same on all ranks."""

# The part of drafts that is right, while nothing is known.
_FIRST_RATE = 0.8
# The weight of the newest draft in three means: the short and the long one of a slot, and the one of all slots, with
# which a new slot begins.
_NEWEST, _NEWEST_OF_MANY, _NEWEST_OF_ALL = 0.2, 0.08, 0.02


class SlotRates:
    """For each slot, the part of its drafts that was right: of the last few drafts, and of many."""

    def __init__(self) -> None:
        self._rates: dict[int, tuple[float, float]] = {}
        self._usual = _FIRST_RATE

    def forget(self, slot: int) -> None:
        """The slot is given to another sequence."""
        self._rates.pop(slot, None)

    def clear(self) -> None:
        """Forget all slots."""
        self._rates.clear()

    def count(self, slot: int, num_right: int, has_wrong: bool) -> None:
        """`num_right` drafts of a slot were right, and the one behind them was wrong if `has_wrong`."""
        recent, long = self._of(slot)
        for is_right in [True] * num_right + [False] * has_wrong:
            recent += _NEWEST * (is_right - recent)
            long += _NEWEST_OF_MANY * (is_right - long)
            self._usual += _NEWEST_OF_ALL * (is_right - self._usual)
        self._rates[slot] = recent, long

    def num_worth(self, slot: int, most: int, least: float) -> int:
        """How many drafts of a slot count with a probability of at least `least`, up to `most`. A draft counts if it is
        right, and all before it are."""
        rate, _ = self._of(slot)
        number, chance = 0, rate
        while number < most and chance >= least:
            number, chance = number + 1, chance * rate
        return number

    def expected(self, slot: int, number: int) -> float:
        """How many of `number` drafts will be right. By the better mean, so a few wrong ones among right ones change
        little."""
        rate = max(self._of(slot))
        return number if rate == 1 else rate * (1 - rate**number) / (1 - rate)

    def _of(self, slot: int) -> tuple[float, float]:
        return self._rates.get(slot, (self._usual, self._usual))
