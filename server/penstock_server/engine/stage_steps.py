"""Steps on their way through the stages of a model, as one stage sees them: it hands them on, and finishes them when
the last stage has told what it found.

With one stage, nothing here does anything.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import torch

from penstock_server.architectures.spec import ModelSpec
from penstock_server.base.errors import StaleEpoch
from penstock_server.engine.pending import PendingOutcome
from penstock_server.engine.plan import Plan, Spans
from penstock_server.engine.stages import Heading, Headings, Listener, Place, Teller, Told
from penstock_server.network.distributed import Group
from penstock_server.network.forward_input import Taps, TapShape
from penstock_server.network.model import Model
from penstock_server.network.stage import rolled

# Takes in what was told, and hidden states for who drafts, if they were.
Finish = Callable[[Told, torch.Tensor, torch.Tensor | None], None]


def _nothing(_told: Told, _found: torch.Tensor, _tapped: torch.Tensor | None) -> None:
    """The heading of a step without spans."""


class _Untold(NamedTuple):
    """A step that the stages behind still compute."""

    pending: PendingOutcome
    # The slots that get tokens. Nothing else is done with them until the tokens are told.
    slots: Collection[int]
    finish: Finish


class StageSteps:
    """The steps of one stage. All of its methods are for the thread that steps."""

    def __init__(self, model: Model, part: Group, device: torch.device, taps: TapShape | None) -> None:
        """`part`: the ranks of the stage. `taps`: the hidden states that the drafter reads, if it reads any."""
        stage = model.stage
        self._stage = stage
        self._num_layers = model.facts.num_layers if isinstance(model.facts, ModelSpec) else 0
        self._part = part
        self._before, self._behind = stage.before, stage.behind
        self._headings = None if stage.before is None else Headings(model, stage.before, device, taps)
        self._listener = None if stage.told is None else Listener(model, stage.told, device, taps)
        self._teller = Teller(stage) if stage.tells else None
        # Oldest first.
        self._untold: deque[_Untold] = deque()

    @property
    def is_told(self) -> bool:
        """Whether another stage tells what is found."""
        return self._listener is not None

    @property
    def tells(self) -> bool:
        """Whether this stage tells others what it finds."""
        return self._teller is not None

    @property
    def hands_on(self) -> bool:
        """Whether there is a stage behind."""
        return self._behind is not None

    def agree(self, mine: Place) -> bool:
        """Whether all ranks of the stage are at this step, and the stage before; waits for ranks that are behind.
        False: another rank has a newer plan.

        When a router dies while it sends, some ranks have a plan that others never get. Computing it would mix the
        collectives of two plans, so the rank with the older plan drops it and the one with the newer plan waits.
        """
        if self._teller is not None:
            # Messages of older epochs that have not come yet never come.
            self._teller.begin(mine.epoch)
        while self._part.size > 1:
            everyone = [Place(*numbers) for numbers in self._part.gather_numbers(*mine)]
            if min(everyone) == max(everyone):
                break
            if mine < max(everyone):
                return False
        return self._headings is None or self._headings.meet(mine)

    def heading(self, plan: Plan) -> Heading | None:
        """The first stage's decisions about this step; None in the first stage itself."""
        return None if self._headings is None else self._headings.pop(Place(plan.epoch, plan.step))

    def wait_for_hidden(self) -> float:
        """Wait until the hidden states of a step are there. Returns the seconds that it waited."""
        if self._before is None:
            return 0.0
        begun = time.perf_counter()
        self._before.wait_for_tensor()
        return time.perf_counter() - begun

    def hand_on(self, heading: Heading) -> None:
        """Tell the stage behind what was decided of a step; its hidden states follow."""
        if self._behind is not None:
            self._behind.put(*heading.numbers())

    def carry(self, taps: Taps | None) -> None:
        """Send the hidden states on that the stages left for the drafter, if it reads them."""
        if taps is not None and self._stage.count > 1:
            self._stage.carry(taps, self._num_layers)

    def tell(
        self, told: Told, found: Sequence[torch.Tensor] = (), tapped: torch.Tensor | None = None
    ) -> None:
        """The last stage tells all others what it found, and the first one the hidden states of all."""
        if self._teller is not None:
            self._teller.tell(told, found, None if tapped is None else rolled(tapped))

    def expect(self, pending: PendingOutcome, slots: Collection[int], finish: Finish = _nothing) -> None:
        """A step is computed here, and is finished when it is told."""
        assert self._listener is not None, "the last stage tells itself"
        self._untold.append(_Untold(pending, slots, finish))
        pending.learn = lambda: self._hear_through(pending)
        pending.has_come = self._listener.has_come

    def catch_up(self, plan: Plan, with_all: bool) -> None:
        """Finish the steps whose tokens this plan needs, and those before them; or all.

        Raises StaleEpoch where they never are told.
        """
        if not self._untold:
            return
        touched = set(_touched(plan))
        needed = [it.pending for it in self._untold if with_all or not touched.isdisjoint(it.slots)]
        if needed:
            self._hear_through(needed[-1])

    def clear(self) -> None:
        """Forget the steps that were not told: they are of no use any more."""
        self._untold.clear()

    def _hear_through(self, last: PendingOutcome) -> None:
        assert self._listener is not None, "another stage tells"
        while last.learn is not None:
            if not self._untold:
                raise StaleEpoch(f"step {last.plan.step} of epoch {last.plan.epoch} was dropped")
            pending, _slots, finish = self._untold[0]
            told = self._listener.hear(Place(pending.plan.epoch, pending.plan.step))
            self._untold.popleft()
            pending.learn = None
            found = self._listener.read(told)
            finish(told, found, self._listener.read_tapped(told))


def _touched(plan: Plan) -> Iterable[int]:
    yield from Spans.of(plan.spans).numbers[0].tolist()
    yield from plan.retired
    yield from (admit.slot for admit in plan.admitted)
