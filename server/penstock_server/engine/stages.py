"""Messages between the stages of a model in a step. Each stage sends a heading and hidden states to the next one. The
last stage sends what it found to the ranks of all stages, each of which has rows and an outcome of its own.

No stage waits for the stages behind it. A step that they still compute is finished here when the last stage has told
what it found, and a stage waits for that only where the next step needs it. Each message has the epoch and the number
of its step. If a router dies while it sends a plan, some ranks never get it: a rank with a newer plan drops the
messages for it.

The receiver allocates tensors of the right sizes, which follow from the step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from penstock_kernels.native.choose import SlotRows

from penstock_server.architectures.spec import ModelSpec
from penstock_server.base.errors import ErrorCode, ShardFailed, StaleEpoch
from penstock_server.engine.plan import Drafts
from penstock_server.engine.sampling import Sampled, Scored, keep
from penstock_server.engine.sampling_params import EXCLUDING
from penstock_server.engine.step import PromptRows, SamplingInput
from penstock_server.network.forward_input import TapShape
from penstock_server.network.model import Model
from penstock_server.network.stage import Stage, unrolled
from penstock_server.network.way import Way

# Why a step failed, as a number; 0: it did not. Where ranks differ, the greatest counts.
REASONS = (None, ErrorCode.OUT_OF_MEMORY, ErrorCode.KERNEL)


class Place(NamedTuple):
    """A step of a stream; later ones are greater."""

    epoch: int
    step: int


@dataclass(frozen=True, slots=True)
class Heading:
    """The first stage's decisions about a step; they are sent before the hidden states."""

    place: Place
    # The number of hidden states; 0: there are none.
    num_tokens: int = 0
    # Whether each stage says, behind them, how its part of the step went.
    compares: bool = False
    # Whether its spans are looked at slot by slot, as some may have drafts.
    is_by_slot: bool = False
    # Whether the hidden states that the drafter reads follow the others.
    is_tapped: bool = False
    # Slots that sit the step out.
    late: Sequence[int] = ()
    drafts: Drafts = field(default_factory=dict)

    def numbers(self) -> list[int]:
        """The numbers that are sent."""
        kinds = (self.compares, self.is_by_slot, self.is_tapped)
        found = [*self.place, self.num_tokens, *kinds, len(self.late), *self.late]
        for slot, drafted in self.drafts.items():
            found += [slot, len(drafted), *drafted]
        return found

    @classmethod
    def of(cls, numbers: Sequence[int]) -> "Heading":
        """The heading in these numbers, which were sent."""
        epoch, step, num_tokens, compares, is_by_slot, is_tapped, num_late, *rest = numbers
        late, rest = rest[:num_late], rest[num_late:]
        drafts: dict[int, tuple[int, ...]] = {}
        while rest:
            slot, count, *rest = rest
            drafts[slot], rest = tuple(rest[:count]), rest[count:]
        kinds = (bool(compares), bool(is_by_slot), bool(is_tapped))
        return cls(Place(epoch, step), num_tokens, *kinds, late, drafts)


@dataclass(slots=True)
class Told:
    """The last stage's results of a step, without the numbers on the device."""

    place: Place
    reason: ErrorCode | None = None
    # How many numbers from the device follow.
    count: int = 0
    # How many hidden states follow these, for the drafter.
    num_tapped: int = 0
    # Rows that got no token because their masks were not there, or that do not count; and those whose grammar failed.
    late: Sequence[int] = ()
    void: Sequence[int] = ()
    failed: Sequence[int] = ()

    def numbers(self) -> list[int]:
        """The numbers that are sent."""
        lists = (self.late, self.void, self.failed)
        sizes = (len(each) for each in lists)
        return [
            *self.place,
            REASONS.index(self.reason),
            self.count,
            self.num_tapped,
            *sizes,
            *(n for each in lists for n in each),
        ]

    @classmethod
    def of(cls, numbers: Sequence[int]) -> "Told":
        """Read the results from the numbers that were sent."""
        epoch, step, reason, count, num_tapped, num_late, num_void, _, *rest = numbers
        behind = num_late + num_void
        lists = rest[:num_late], rest[num_late:behind], rest[behind:]
        return cls(Place(epoch, step), REASONS[reason], count, num_tapped, *lists)


class Headings:
    """Where a stage receives the headings of its steps."""

    def __init__(self, model: Model, before: Way, device: torch.device, taps: TapShape | None) -> None:
        """`taps`: the hidden states that the drafter reads, if it reads any."""
        self._model = model
        self._before = before
        self._device = device
        self._taps = taps

    def meet(self, place: Place) -> bool:
        """Wait until the stage before is at this step. False: it has a newer one, and this one must be dropped."""
        numbers = self._before.take()
        while (heading := Heading.of(numbers)).place < place:
            self._drop(heading)
            numbers = self._before.take()
        self._before.put_back(numbers)
        return heading.place == place

    def pop(self, place: Place) -> Heading:
        """The heading of this step."""
        if not self.meet(place):
            raise StaleEpoch(f"step {place.step} of epoch {place.epoch}: the stage before has a newer one")
        return Heading.of(self._before.take())

    def _drop(self, heading: Heading) -> None:
        """Receive what was sent behind a heading that is dropped, and drop it, too."""
        if heading.num_tokens:
            self._before.receive(room_for_hidden(self._model, heading.num_tokens, self._device))
        if heading.num_tokens and heading.is_tapped and self._taps is not None:
            self._before.receive(self._taps.rows(heading.num_tokens, self._model.dtype, self._device))
        if heading.compares:
            self._before.take()


class Teller:
    """The last stage's end of the messages: it tells all others what it found."""

    def __init__(self, stage: Stage) -> None:
        self._ways = stage.tells
        self._epoch = 0

    def begin(self, epoch: int) -> None:
        """Steps of this epoch come. What was not told of older ones is never told."""
        if epoch > self._epoch:
            self._epoch = epoch
            self._tell(Told(Place(epoch, 0)))

    def tell(
        self, told: Told, found: Sequence[torch.Tensor] = (), tapped: torch.Tensor | None = None
    ) -> None:
        """Send what was found, and tensors of numbers that are exact in 64 bits: ids and probabilities.

        `tapped`: hidden states, a row for each token, which only the first stage gets.
        """
        told.count = sum(numbers.numel() for numbers in found)
        self._tell(told, 0 if tapped is None else len(tapped))
        if told.count:
            sent = torch.cat([numbers.reshape(-1).double() for numbers in found])
            for each in self._ways:
                each.send(sent)
        if tapped is not None:
            self._ways[0].send(tapped)

    def _tell(self, told: Told, num_tapped: int = 0) -> None:
        first, *others = self._ways
        first.put(*replace(told, num_tapped=num_tapped).numbers())
        for each in others:
            each.put(*told.numbers())


class Listener:
    """The end of the messages in another stage."""

    def __init__(self, model: Model, told: Way, device: torch.device, taps: TapShape | None) -> None:
        """`taps`: as for `Headings`."""
        self._dtype = model.dtype
        self._told = told
        self._device = device
        self._taps = taps

    def has_come(self) -> bool:
        """Whether a message is there."""
        return self._told.has_come()

    def hear(self, place: Place) -> Told:
        """The results of this step; waits for them. Raises StaleEpoch where the last stage never gets it."""
        numbers = self._told.take()
        while (told := Told.of(numbers)).place < place:
            self.read(told)
            self.read_tapped(told)
            numbers = self._told.take()
        if told.place != place:
            self._told.put_back(numbers)
            raise StaleEpoch(f"step {place.step} of epoch {place.epoch} did not reach the last stage")
        return told

    def read(self, told: Told) -> torch.Tensor:
        """The numbers from the device."""
        if not told.count:
            return torch.empty(0, dtype=torch.float64, device=self._device)
        return self._told.receive(torch.zeros(told.count, dtype=torch.float64, device=self._device))

    def read_tapped(self, told: Told) -> torch.Tensor | None:
        """The hidden states as the drafter reads them, if there are any. Called after `read`."""
        if not told.num_tapped or self._taps is None:
            return None
        rows = self._taps.rows(told.num_tapped, self._dtype, self._device)
        return unrolled(self._told.receive(rows), len(self._taps.layers))


def read_found(
    found: torch.Tensor,
    sampling: SamplingInput,
    has_masks: bool,
    prompts: Sequence[tuple[PromptRows, Scored]],
    kept: SlotRows,
) -> Sampled | None:
    """Read the scores of prompts from the last stage's numbers; returns what it sampled, None if nothing."""
    sampled = room_for_sampled(sampling, has_masks, found.device) if sampling.num_rows else None
    fill(found_tensors(prompts, sampled), found)
    if sampled is not None and sampling.decodes is not None:
        keep(sampled, sampling, kept)
    return sampled


def fill(rooms: Sequence[torch.Tensor], found: torch.Tensor) -> None:
    """These with what the last stage has in their places."""
    if sum(room.numel() for room in rooms) != len(found):
        raise ShardFailed("the last stage found something else than this one expects")
    for room, part in zip(rooms, torch.split(found, [room.numel() for room in rooms]), strict=True):
        room.copy_(part.view_as(room))


def room_for_hidden(model: Model, num_tokens: int, device: torch.device) -> torch.Tensor:
    """[num_tokens, hidden_size]."""
    assert isinstance(model.facts, ModelSpec), "only our decoder has stages"
    return torch.zeros(num_tokens, model.facts.hidden_size, dtype=model.dtype, device=device)


def received(model: Model, num_tokens: int, device: torch.device) -> torch.Tensor | None:
    """The hidden states that the stage before has of these tokens; None in the first stage."""
    if model.stage.is_first:
        return None
    return model.stage.receive(room_for_hidden(model, num_tokens, device))


def tensors_of(sampled: Sampled) -> list[torch.Tensor]:
    """All that was found, in one order."""
    own = (sampled.token_ids, sampled.logprobs, sampled.finite)
    some = (sampled.possible, sampled.top_ids, sampled.top_logprobs)
    apart = [] if sampled.apart is None else tensors_of(sampled.apart)
    return [*own, *(numbers for numbers in some if numbers is not None), *apart]


def found_tensors(
    prompts: Sequence[tuple[PromptRows, Scored]], sampled: Sampled | None
) -> list[torch.Tensor]:
    """All that the last stage finds in a step, in one order."""
    scored = [column for _rows, columns in prompts for column in columns]
    return scored if sampled is None else [*scored, *tensors_of(sampled)]


def room_for_sampled(sampling: SamplingInput, has_masks: bool, device: torch.device) -> Sampled:
    """Zeros of the sizes of what `sample` and `sample_decodes` return."""
    apart = None if sampling.apart is None else room_for_sampled(sampling.apart, has_masks, device)
    is_restricted = sampling.decodes is None and (has_masks or bool(sampling.features & EXCLUDING))
    count, most = sampling.num_rows, sampling.num_top
    return Sampled(
        torch.zeros(count, dtype=torch.int64, device=device),
        torch.zeros(count, device=device),
        torch.zeros(count, dtype=torch.bool, device=device),
        torch.zeros(count, dtype=torch.bool, device=device) if is_restricted else None,
        torch.zeros(count, most, dtype=torch.int64, device=device) if most else None,
        torch.zeros(count, most, device=device) if most else None,
        apart,
    )


def room_for_scored(count: int, num_top: int, device: torch.device) -> Scored:
    """Zeros of the sizes of what `score` returns."""
    return Scored(
        torch.zeros(count, device=device),
        torch.zeros(count, num_top, dtype=torch.int64, device=device),
        torch.zeros(count, num_top, device=device),
        torch.zeros(count, dtype=torch.int64, device=device),
    )
