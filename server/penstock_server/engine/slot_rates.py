"""How often drafts of a slot are right. That follows from outcomes alone, so it is the same on all ranks."""

# Of all slots, while nothing is known.
_FIRST_RATE = 0.8
# What the newest draft counts: of a slot, and of all slots, as which a new one begins.
_NEWEST, _NEWEST_OF_MANY, _NEWEST_OF_ALL = 0.2, 0.08, 0.02


class SlotRates:
    """Of each slot the part of its drafts that was right: of the last few, and of more of them."""

    def __init__(self) -> None:
        self._rates: dict[int, tuple[float, float]] = {}
        self._usual = _FIRST_RATE

    def forget(self, slot: int) -> None:
        """It is given to another sequence."""
        self._rates.pop(slot, None)

    def clear(self) -> None:
        """Forget all slots."""
        self._rates.clear()

    def count(self, slot: int, num_right: int, has_wrong: bool) -> None:
        """So many drafts of a slot were right, and the one behind them wrong."""
        recent, long = self._of(slot)
        for is_right in [True] * num_right + [False] * has_wrong:
            recent += _NEWEST * (is_right - recent)
            long += _NEWEST_OF_MANY * (is_right - long)
            self._usual += _NEWEST_OF_ALL * (is_right - self._usual)
        self._rates[slot] = recent, long

    def num_worth(self, slot: int, most: int, least: float) -> int:
        """How many drafts of a slot count with such a probability, each behind the ones before it."""
        rate, _ = self._of(slot)
        number, chance = 0, rate
        while number < most and chance >= least:
            number, chance = number + 1, chance * rate
        return number

    def expected(self, slot: int, number: int) -> float:
        """How many of so many drafts will be right. A few wrong ones among right ones change little."""
        rate = max(self._of(slot))
        return number if rate == 1 else rate * (1 - rate**number) / (1 - rate)

    def _of(self, slot: int) -> tuple[float, float]:
        return self._rates.get(slot, (self._usual, self._usual))
