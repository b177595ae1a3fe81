"""The base of drafters that limit another drafter: what they do not override is done by the other one."""

from collections.abc import Iterator, Sequence

import torch

from penstock_server.engine.drafting import Drafter
from penstock_server.engine.plan import Span
from penstock_server.engine.recordings import Ahead
from penstock_server.network.forward_input import TapShape


class LimitingDrafter(Drafter):
    """Hands everything on to the drafter that it limits."""

    def __init__(self, drafter: Drafter) -> None:
        self.inner = drafter

    @property
    def taps(self) -> TapShape | None:
        return self.inner.taps

    @property
    def reads_step(self) -> bool:
        return self.inner.reads_step

    @property
    def takes_in(self) -> bool:
        return self.inner.takes_in

    @property
    def catches_up(self) -> bool:
        return self.inner.catches_up

    @property
    def is_behind(self) -> bool:
        return self.inner.is_behind

    def read(self, spans: Sequence[Span], states: torch.Tensor) -> None:
        self.inner.read(spans, states)

    def keep(self, slot: int, path: Sequence[int]) -> None:
        self.inner.keep(slot, path)

    def forget(self, blocks: Sequence[int]) -> None:
        self.inner.forget(blocks)

    def clear(self) -> None:
        self.inner.clear()

    @property
    def grows_trees(self) -> bool:
        return self.inner.grows_trees

    def ahead(self, count: int, max_drafts: int) -> Iterator[Ahead]:
        return self.inner.ahead(count, max_drafts)

    def capture(self) -> None:
        self.inner.capture()

    def rehearse(self) -> None:
        self.inner.rehearse()

    def close(self) -> None:
        self.inner.close()


def unlimited(drafter: Drafter) -> Drafter:
    """The drafter inside all that limit it."""
    while isinstance(drafter, LimitingDrafter):
        drafter = drafter.inner
    return drafter
