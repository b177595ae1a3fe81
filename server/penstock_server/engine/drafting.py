"""The seam of drafters: who guesses the next tokens of a slot. `ngram_drafter`, `suffix_drafter`, `model_drafter`,
`medusa_drafter`, `head_drafter` and `parallel_drafter` are its rows.

A wrong draft changes no token, only how many a step gives. All ranks must draft the same.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch

from penstock_server.engine.plan import Drafts, Plan, Span
from penstock_server.engine.recordings import Ahead
from penstock_server.network.forward_input import TapShape


class Drafter:
    """Drafts nothing and needs to know nothing; the others override that. Called from the thread that steps."""

    @property
    def taps(self) -> TapShape | None:
        """The hidden states of the model that `read` is told; None: none are, and steps leave none."""
        return None

    @property
    def reads_step(self) -> bool:
        """Whether it is to be told those of the step of the plan that it followed last."""
        return False

    @property
    def takes_in(self) -> bool:
        """Whether it is asked in steps in which nothing is to be drafted, too: it may compute with what it was told."""
        return self.taps is not None

    @property
    def catches_up(self) -> bool:
        """Whether it may compute what it lacks before it drafts, and then draft nothing yet."""
        return False

    @property
    def is_behind(self) -> bool:
        """Whether it keeps so much of what it was told that it is to be asked, wherever drafts pay."""
        return False

    def worth(self, num_rows: int, wanted: Mapping[int, int]) -> Mapping[int, int]:
        """Of what may be drafted, by slot, what is likely to pay in a step of so many rows. Asked once for a step."""
        return wanted

    def draft(self, spans: Sequence[Span], wanted: Mapping[int, int]) -> Drafts:
        """Up to so many tokens for each slot of `wanted`, all of which are where their length says.

        `spans`: all that the step computes, before drafts.
        """
        return {}

    def draft_trees(self, spans: Sequence[Span], wanted: Mapping[int, int]) -> Drafts:
        """As `draft`; what is drafted for a slot may be a tree."""
        return self.draft(spans, wanted)

    def follow(self, plan: Plan) -> None:
        """The slots applied this plan; its spans are not computed yet."""

    def read(self, spans: Sequence[Span], states: torch.Tensor) -> None:
        """The hidden states of a step over these spans, drafts included: [num_taps, num_tokens, hidden_size].

        They are valid until the next step, and may still be computed on the device. Only of steps that it reads; where
        other stages compute them, later plans may have been followed.
        """

    def keep(self, slot: int, path: Sequence[int]) -> None:
        """Of the tree drafted for a slot in the last step, these tokens were right; `accept` follows."""

    def accept(self, slot: int, num_right: int) -> None:
        """So many of the tokens drafted for a slot in the last step were right."""

    def forget(self, blocks: Sequence[int]) -> None:
        """These blocks hold what another replica computed, and nothing of what is drafted with."""

    def clear(self) -> None:
        """All slots are free."""

    @property
    def grows_trees(self) -> bool:
        """Whether what it drafts may be a tree."""
        return False

    def ahead(self, count: int, max_drafts: int) -> Iterator[Ahead]:
        """What it records when it drafts up to so many tokens for each of so many slots, each to be recorded alone."""
        return iter(())

    def capture(self) -> None:
        """Capture graphs, before the first step."""

    def rehearse(self) -> None:
        """Launch all that drafting does. For a context in which launches only compile."""

    def close(self) -> None:
        """Destroy what was captured."""


class Tapped(Drafter):
    """In a stage behind the first: hidden states are left for who drafts there."""

    def __init__(self, taps: TapShape) -> None:
        self._taps = taps

    @property
    def taps(self) -> TapShape | None:
        return self._taps
