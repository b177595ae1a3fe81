"""What prompts cost who drafts: a draft model or a head computes them, too, before it drafts behind them.

A long prompt in front of a short answer may cost more than drafts of the answer save. So the time is charged to the
tokens that are generated, by the number of prompt tokens that come with each of them.
"""

# So many of the last generated tokens decide.
_NUM_TOKENS = 1024
# What counts of older numbers at a call that computed parts of prompts; the fewest calls before anything is charged.
_KEPT_OF_CALLS, _FEWEST = 0.9, 4
# A call counts as at most this many times the time that is expected of it.
_LONGEST = 4.0


class PromptCost:
    """Measures the time for each prompt token, and counts tokens."""

    def __init__(self) -> None:
        self._num_prompt = self._num_generated = 0.0
        # Of calls that computed parts of prompts: how many there were, their seconds beyond those of other calls, and
        # their tokens.
        self._count = 0
        self._seconds = self._num_computed = 0.0
        # The mean time of other calls.
        self._usual: float | None = None

    def count(self, num_prompt: int, num_generated: int) -> None:
        """Steps compute so many tokens of prompts, and generate so many."""
        kept = max(0.0, 1 - num_generated / _NUM_TOKENS)
        self._num_prompt = kept * self._num_prompt + num_prompt
        self._num_generated = kept * self._num_generated + num_generated

    def add_generated(self, count: int) -> None:
        """The last step generated so many more: drafts were right."""
        self._num_generated += count

    def note_call(self, num_computed: int, seconds: float) -> None:
        """The drafter was called, and computed so many tokens of prompts meanwhile."""
        if num_computed == 0:
            usual = seconds if self._usual is None else self._usual
            self._usual = usual + (1 - _KEPT_OF_CALLS) * (min(seconds, _LONGEST * usual) - usual)
            return
        seconds = max(0.0, seconds - (self._usual or 0.0))
        if self._count >= _FEWEST:
            seconds = min(seconds, _LONGEST * num_computed * self._of_token)
        self._count += 1
        self._seconds = _KEPT_OF_CALLS * self._seconds + seconds
        self._num_computed = _KEPT_OF_CALLS * self._num_computed + num_computed

    @property
    def seconds(self) -> float:
        """The time for each token that is generated; 0: not known yet."""
        if self._count < _FEWEST or self._num_generated < 1:
            return 0.0
        return self._of_token * self._num_prompt / self._num_generated

    @property
    def _of_token(self) -> float:
        return self._seconds / self._num_computed
