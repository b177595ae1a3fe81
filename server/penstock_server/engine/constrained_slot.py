"""The grammar of one slot: its matcher, the mask of its next token, and what both may cost.

The matcher's state follows from the generated tokens alone, so it survives preemption and replay. One job at a time
works on it: it takes in the token that was chosen, and computes the mask of the next. On a GPU a token is chosen before
the host knows it, so the job waits for the token.

Where tokens are drafted, a job goes along them: it takes in those that the grammar allows, and computes the mask behind
each. Where they are guessed one by one, there is a job for each, whose mask the next guess keeps to. The job of the
chosen tokens takes back what was wrong of that.
"""

import math
import re
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

import torch

from penstock_server.engine.grammar_threads import Caller, GrammarThreads, Job, Kind, Work
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
# A job that takes no longer is brief: to hand it to another thread, which has to wake up, costs as much. A slot is
# brief after so many of them, and after a longer one so many; never again after one that took long.
_BRIEF_S = 0.0002
_NUM_BRIEF = 4
_NUM_BRIEF_AGAIN = 16


class ConstrainedSlot:
    """Used from the step loop's thread, but for the jobs."""

    def __init__(
        self,
        build: Callable[[], Matcher],
        width: int,
        threads: GrammarThreads,
        end_ids: Sequence[int] = (),
        is_kept: bool = False,
        generated: Sequence[int] = (),
    ) -> None:
        """`end_ids`: tokens behind which a matcher allows nothing. `is_kept`: to build the matcher takes no time.
        `generated`: the tokens that the slot has when it is admitted.
        """
        # One bit per token, least significant first; written by the job. [2, width] int32, of which the second row only
        # makes room for the matcher that a call apart needs.
        self._masks = torch.zeros(2, width, dtype=torch.int32)
        self.is_retired = False
        self._threads = threads
        self._matcher: Matcher | None = None
        self._build_matcher = build
        self._is_kept = is_kept
        self._end_ids = frozenset(end_ids)
        # The tokens that the matcher was told, and those that it is to be told before its first mask.
        self._told: list[int] = []
        self._untold = deque(generated)
        self._ahead: Ahead | None = None
        # Drafts that the matcher has taken in.
        self._num_ahead = 0
        # An error along drafts, which may be wrong, is none of the slot's: its matcher is built anew, and nothing is
        # drafted for it from then on.
        self._is_broken = self._is_spoilt = False
        # Steps in which nothing is drafted for it because what came along drafts took long.
        self._num_steps_due = 0
        self._is_told = True
        self._failure = ""
        self._spent_s = 0.0
        self._limit_s = _MAX_BUILD_S
        self._num_in_time_due = 0
        self._is_long = False
        # Brief jobs that are missing until it is brief; None: it never is.
        self._num_brief_due: int | None = _NUM_BRIEF
        # Processor time of its last job.
        self._last_cost_s = 0.0
        self._job = Job(self._build)
        threads.start(self._job, Kind.MASK if is_kept else Kind.BUILD)
        # Done when nothing works on the matcher any more.
        self._last: Future[str] = self._job.done

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
    def ahead(self) -> "Ahead | None":
        """The masks computed along the drafts of the step; None if it has no drafts."""
        return self._ahead

    @property
    def may_draft(self) -> bool:
        """Whether tokens may be drafted for it: not where masks take long, nor before it was told its last token."""
        is_due = self.is_waited_for and self._is_told and not self._num_steps_due
        return is_due and not (self._is_spoilt or self.failure())

    @property
    def is_waited_for(self) -> bool:
        """Whether a step may wait for it."""
        return self._num_in_time_due == 0 and not self._is_long and not self._is_being_built

    @property
    def _is_being_built(self) -> bool:
        return (self._matcher is None or bool(self._untold)) and not self._is_kept

    @property
    def brief_s(self) -> float | None:
        """The likely time of its next job, if it is so short that the caller does the job at once."""
        return self._last_cost_s if self._num_brief_due == 0 and self._last.done() else None

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
        if is_late and self._is_being_built:
            return
        self._num_in_time_due = _IN_TIME_AGAIN if is_late else max(0, self._num_in_time_due - 1)

    @property
    def num_legal(self) -> int:
        """How many of the drafts are known to be legal."""
        return self._ahead.num_legal.result() if self._ahead and self._ahead.num_legal.done() else 0

    def look_ahead(self, drafts: tuple[int, ...]) -> "Ahead":
        """Tokens are drafted behind the last one: begin to compute what may come behind each, or go on with that."""
        if self._ahead is not None and self._ahead.begins_with(drafts):
            # Each was guessed under a mask.
            self._ahead.tell_legal(len(drafts))
            return self._ahead
        self._ahead = Ahead(drafts, len(drafts), self._masks.shape[1])
        self._start(self._ahead.add(partial(self._go_along, self._ahead)))
        return self._ahead

    def guess(self, most: int) -> "Ahead":
        """Up to so many tokens are guessed behind the last one, each of which `go_on` is told."""
        self._ahead = Ahead((), most, self._masks.shape[1])
        return self._ahead

    def go_on(self, token_id: int) -> bool:
        """A token was guessed: begin to compute what may come behind it. False: nothing may."""
        assert self._ahead is not None, "guesses were begun"
        if token_id in self._end_ids:
            return False
        number = len(self._ahead.drafts)
        self._ahead.drafts += (token_id,)
        self._start(self._ahead.add(partial(self._follow, self._ahead, number)))
        return True

    def choose(self) -> None:
        """Its mask was used to choose a token. The next mask is not there until the token is told."""
        cost_s = self._job.cost_s()
        self._spent_s += cost_s
        self._limit_s = _MAX_TOKEN_S
        self._is_long = cost_s > _LONG_S
        self._count_brief(cost_s)
        self._is_told = False
        self._num_steps_due = max(0, self._num_steps_due - 1)
        if self._ahead is not None:
            self._ahead.num_wanted = 0
            if self._ahead.cost_s() > _LONG_S * (1 + len(self._ahead.drafts)):
                self._num_steps_due = _IN_TIME_AGAIN
            self._ahead = None
        self._job = Job(lambda _apart: "")

    def _count_brief(self, cost_s: float) -> None:
        self._last_cost_s = cost_s
        if self._num_brief_due is None or cost_s > _LONG_S:
            self._num_brief_due = None
        else:
            self._num_brief_due = max(0, self._num_brief_due - 1) if cost_s <= _BRIEF_S else _NUM_BRIEF_AGAIN

    def tell(self, token_ids: list[int], is_at_once: bool = False) -> None:
        """The tokens that were chosen, of which all but the last were drafted: the next mask is begun.

        `is_at_once`: it is there on return, computed by the caller.
        """
        self._is_told = True
        self._job.work = partial(self._consume, token_ids)
        if is_at_once:
            self._last = self._job.done
            self._job.run(Caller())
        else:
            self._start(self._job)

    def _start(self, job: Job) -> None:
        """Start a job when those before it are done: one at a time works on the matcher."""
        last, self._last = self._last, job.done
        last.add_done_callback(lambda _: self._threads.start(job, Kind.LONG if self._is_long else Kind.MASK))

    def _excess(self) -> str:
        cost_s = self._job.cost_s()
        if cost_s > self._limit_s:
            what = "to build" if self._matcher is None else "for one token"
            return f"the grammar takes too long: more than {self._limit_s:g} s {what}"
        if self._spent_s + cost_s > _MAX_TOTAL_S:
            return f"the grammar takes too long: more than {_MAX_TOTAL_S:g} s for the tokens so far"
        return ""

    def _build(self, apart: LowPriority | None) -> str | Kind:
        try:
            self._matcher = self._build_matcher()
        except ValueError as error:
            return f"the grammar cannot be built: {readable(str(error))}"
        if not self._untold:
            return self._fill(self._matcher, apart)
        # These are tokens like any other, whose time is limited together: not of a thread that has given way, as it
        # would hold the interpreter's lock.
        self._limit_s = math.inf
        self._job.work = partial(self._replay, self._matcher)
        return Kind.MASK

    def _replay(self, matcher: Matcher, apart: LowPriority | None) -> str | Kind:
        """Take in what was generated before. Once a token has taken long, the others are taken in apart."""
        while self._untold and not (self.is_retired or matcher.error()):
            if reason := self._excess():
                return reason
            begun_s = self._job.cost_s()
            matcher.consume(self._untold[0], apart)
            self._told.append(self._untold.popleft())
            if not self._is_long and self._job.cost_s() - begun_s > _LONG_S:
                self._is_long = True
                return Kind.LONG
        return self._fill(matcher, apart)

    def _consume(self, token_ids: list[int], apart: LowPriority | None) -> str:
        assert self._matcher is not None, "a token was chosen under its mask"
        if not self.is_retired:
            known = token_ids[: min(self._num_ahead, len(token_ids) - 1)]
            matcher = self._go_back(known)
            self._num_ahead = 0
            for token_id in token_ids[len(known) :]:
                matcher.consume(token_id, apart)
            self._told += token_ids
        return self._fill(self._matcher, apart)

    def _go_along(self, ahead: "Ahead", _apart: LowPriority | None) -> str:
        """Take in drafts as long as they are legal and wanted, with a mask behind each."""
        try:
            if self._can_go_along(self._matcher):
                self._advance(self._go_back([]), ahead)
        finally:
            ahead.tell_legal(0)
        return ""

    def _follow(self, ahead: "Ahead", number: int, _apart: LowPriority | None) -> str:
        """Take in the guess of this number, with a mask behind it, if those before it were taken in."""
        if ahead.num_masks == number < ahead.num_wanted and self._can_go_along(self._matcher):
            matcher = self._go_back(list(ahead.drafts[:number]))
            if matcher.num_legal([ahead.drafts[number]]):
                self._take_in(matcher, ahead, number)
        return ""

    def _can_go_along(self, matcher: Matcher | None) -> bool:
        return matcher is not None and not self.is_retired and not matcher.error()

    def _advance(self, matcher: Matcher, ahead: "Ahead") -> None:
        until_end = next((i for i, it in enumerate(ahead.drafts) if it in self._end_ids), len(ahead.drafts))
        num_legal = matcher.num_legal(ahead.drafts[:until_end])
        ahead.tell_legal(num_legal)
        for number in range(num_legal):
            if number >= ahead.num_wanted or self.is_retired or not self._take_in(matcher, ahead, number):
                return

    def _take_in(self, matcher: Matcher, ahead: "Ahead", number: int) -> bool:
        """Take in a draft and compute the mask behind it; False where that went wrong."""
        matcher.consume(ahead.drafts[number], None)
        self._num_ahead += 1
        matcher.fill(ahead.masks[number : number + 1], None)
        if matcher.error():
            self._is_broken = self._is_spoilt = True
            return False
        ahead.num_masks = number + 1
        return True

    def _go_back(self, kept: list[int]) -> Matcher:
        """Take back the drafts that the matcher has taken in, but for the first ones, which are these."""
        assert self._matcher is not None, "it was built before"
        if self._is_broken:
            self._matcher = self._build_matcher()
            for token_id in [*self._told, *kept]:
                self._matcher.consume(token_id, None)
            self._is_broken = False
        else:
            self._matcher.roll_back(self._num_ahead - len(kept))
        self._num_ahead = len(kept)
        return self._matcher

    def _fill(self, matcher: Matcher, apart: LowPriority | None) -> str:
        if self.is_retired:
            return ""
        if not matcher.error():
            matcher.fill(self._masks, apart)
        error = matcher.error()
        return f"the grammar cannot be used: {readable(error)}" if error else ""


class Ahead:
    """Drafts, and what is found out along them."""

    def __init__(self, drafts: tuple[int, ...], most: int, width: int) -> None:
        """`most`: how many there may be, if more are guessed."""
        self.drafts = drafts
        self._jobs: list[Job] = []
        # The masks of the tokens that may come behind each draft; `num_masks` are filled. [most, width] int32.
        self.masks = torch.empty(most, width, dtype=torch.int32)
        self.num_masks = 0
        # Drafts that the step computes: the others need no masks.
        self.num_wanted = most
        # How many are legal.
        self.num_legal: Future[int] = Future()

    def add(self, work: Work) -> Job:
        """A job along the drafts."""
        self._jobs.append(Job(work))
        return self._jobs[-1]

    @property
    def last(self) -> Future[str] | None:
        """Done when all of it is; None: nothing is to be computed."""
        return self._jobs[-1].done if self._jobs else None

    def cost_s(self) -> float:
        """Processor time of all of it so far."""
        return sum(job.cost_s() for job in self._jobs)

    def begins_with(self, drafts: tuple[int, ...]) -> bool:
        """Whether these are the first ones of what was guessed."""
        return not self.num_legal.done() and self.drafts[: len(drafts)] == drafts

    def tell_legal(self, count: int) -> None:
        """How many are legal, if that was not told."""
        if not self.num_legal.done():
            self.num_legal.set_result(count)


_TOO_MANY = "too much of it is possible at one point of the output; it needs fewer alternatives"
_TOO_LARGE = "its expressions are too large together"
# Errors of llguidance in its own terms, and what they mean for a client; the same as in the router
# (grammar/compiler.rs).
_IN_WORDS = (
    ("; ff_tokens)", "it forces a text that is too long or has no end"),
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
