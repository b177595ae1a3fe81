"""The grammar of one slot: its matcher, the mask of its next token, and what both may cost.

The matcher's state follows from the generated tokens alone, so it survives preemption and replay. One job at a time
works on it: it takes in the token that was chosen, and computes the mask of the next. On a GPU a token is chosen before
the host knows it, so the job waits for the token.
"""

import re
from collections.abc import Callable
from functools import partial

import torch

from penstock_server.engine.grammar_threads import GrammarThreads, Job
from penstock_server.engine.low_priority import LowPriority
from penstock_server.engine.matcher import Matcher

# Most processor time: to build the matcher, as in the router (grammar/grammars.rs), for one token, and all together.
# The jobs of usual grammars take a tenth of a millisecond for a token.
_MAX_BUILD_S = 5.0
_MAX_TOKEN_S = 0.5
_MAX_TOTAL_S = 30.0
# After a job that took so long, the next one gets only processor time that nobody else wants, and no step waits for it.
_LONG_S = 0.002
# After it was late, a slot is not waited for before it was in time so often.
_IN_TIME_AGAIN = 16


class ConstrainedSlot:
    """Used from the step loop's thread, but for the jobs."""

    def __init__(self, build: Callable[[], Matcher], width: int, threads: GrammarThreads) -> None:
        # One bit per token, least significant first; written by the job. [2, width] int32, of which the second row only
        # makes room for the matcher that a call apart needs.
        self._masks = torch.zeros(2, width, dtype=torch.int32)
        self.is_retired = False
        self._threads = threads
        self._matcher: Matcher | None = None
        self._failure = ""
        self._spent_s = 0.0
        self._limit_s = _MAX_BUILD_S
        self._num_in_time_due = 0
        self._is_long = False
        self._job = threads.submit(partial(self._build, build))

    @property
    def job(self) -> Job:
        """The job that computes the mask of the next token."""
        return self._job

    @property
    def bits(self) -> torch.Tensor:
        """Which tokens may come next, once the job is done. [width] int32."""
        return self._masks[0]

    @property
    def is_ready(self) -> bool:
        """Whether the mask of the next token, or its failure, is there."""
        return self._job.done.done()

    @property
    def is_waited_for(self) -> bool:
        """Whether a step may wait for it."""
        return self._num_in_time_due == 0 and not self._is_long

    def failure(self) -> str:
        """Why it cannot go on, or nothing. It never recovers."""
        if not self._failure:
            self._failure = self._excess() or (self._job.done.result() if self.is_ready else "")
        return self._failure

    def fail(self, reason: str) -> None:
        """It cannot go on, for a reason that another rank has."""
        self._failure = self._failure or reason

    def on_step(self, is_late: bool) -> None:
        """A step was to choose a token for it."""
        self._num_in_time_due = _IN_TIME_AGAIN if is_late else max(0, self._num_in_time_due - 1)

    def choose(self) -> None:
        """Its mask was used to choose a token. The next mask is not there until the token is told."""
        cost_s = self._job.cost_s()
        self._spent_s += cost_s
        self._limit_s = _MAX_TOKEN_S
        self._is_long = cost_s > _LONG_S
        self._job = Job(lambda _apart: "")

    def tell(self, token_id: int) -> None:
        """The token that was chosen: the next mask is begun."""
        self._job.work = partial(self._consume, token_id)
        self._threads.start(self._job, self._is_long)

    def _excess(self) -> str:
        cost_s = self._job.cost_s()
        if cost_s > self._limit_s:
            what = "to build" if self._matcher is None else "for one token"
            return f"the grammar takes too long: more than {self._limit_s:g} s {what}"
        if self._spent_s + cost_s > _MAX_TOTAL_S:
            return f"the grammar takes too long: more than {_MAX_TOTAL_S:g} s for the tokens so far"
        return ""

    def _build(self, build: Callable[[], Matcher], apart: LowPriority | None) -> str:
        try:
            self._matcher = build()
        except ValueError as error:
            return f"the grammar cannot be built: {readable(str(error))}"
        return self._fill(self._matcher, apart)

    def _consume(self, token_id: int, apart: LowPriority | None) -> str:
        assert self._matcher is not None, "a token was chosen under its mask"
        if not self.is_retired:
            self._matcher.consume(token_id, apart)
        return self._fill(self._matcher, apart)

    def _fill(self, matcher: Matcher, apart: LowPriority | None) -> str:
        if self.is_retired:
            return ""
        if not matcher.error():
            matcher.fill(self._masks, apart)
        error = matcher.error()
        return f"the grammar cannot be used: {readable(error)}" if error else ""


_TOO_MANY = "too much of it is possible at one point of the output; it needs fewer alternatives"
_TOO_LARGE = "its expressions are too large together"
# Errors of llguidance in its own terms, and what they mean for a client; the same as in the router
# (grammar/compiler.rs).
_IN_WORDS = (
    ("Too many items", _TOO_MANY),
    ("Current row has", _TOO_MANY),
    ("ParserTooComplex", _TOO_MANY),
    ("LexerTooComplex", _TOO_LARGE),
    ("lexer error", _TOO_LARGE),
    ("NoExtension", "the output cannot go on"),
)


def readable(error: str) -> str:
    """An error of llguidance in words for a client: on one line, without what only llguidance's authors know."""
    for known, reason in _IN_WORDS:
        if known in error:
            return reason
    return " ".join(re.sub(r"<[\w-]+/>", "", error).split()) or "no reason is known"
