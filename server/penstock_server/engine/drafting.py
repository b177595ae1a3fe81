"""The seam of drafters: a drafter guesses the next tokens of slots. `ngram_drafter`, `suffix_drafter`, `model_drafter`,
`medusa_drafter`, `head_drafter` and `parallel_drafter` implement it.

A wrong draft changes no token, only how many tokens a step gives. All ranks must draft the same.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch

from penstock_server.engine.plan import Drafts, Plan, Span
from penstock_server.engine.recordings import Ahead
from penstock_server.network.forward_input import TapShape


class Drafter:
    """Drafts nothing and needs no hidden states; others override that. Called from the thread that steps."""

    @property
    def taps(self) -> TapShape | None:
        """The shape of the model's hidden states that `read` gets; None: it gets none, and steps leave none."""
        return None

    @property
    def reads_step(self) -> bool:
        """Whether it needs the hidden states of the step whose plan it followed last."""
        return False

    @property
    def takes_in(self) -> bool:
        """Whether it is called in steps in which nothing is to be drafted, too: it may compute with the hidden states
        that it got."""
        return self.taps is not None

    @property
    def catches_up(self) -> bool:
        """Whether it may have to compute earlier positions before it can draft, and draft nothing in that step."""
        return False

    @property
    def is_behind(self) -> bool:
        """Whether it keeps so many hidden states that it has to be called, whether drafts pay or not."""
        return False

    def worth(self, num_rows: int, wanted: Mapping[int, int]) -> Mapping[int, int]:
        """How many drafts are likely to pay, by slot, in a step of `num_rows` rows. `wanted`: how many may be drafted.
        Called once for each step."""
        return wanted

    def draft(self, spans: Sequence[Span], wanted: Mapping[int, int]) -> Drafts:
        """Tokens for each slot of `wanted`, up to the number there. All of these slots stand where their length says.

        `spans`: what the step computes without drafts.
        """
        return {}

    def draft_trees(self, spans: Sequence[Span], wanted: Mapping[int, int]) -> Drafts:
        """Does what `draft` does, but the drafts of a slot may be a tree."""
        return self.draft(spans, wanted)

    def follow(self, plan: Plan) -> None:
        """The slots applied this plan; its spans are not computed yet."""

    def read(self, spans: Sequence[Span], states: torch.Tensor) -> None:
        """The hidden states of a step over these spans, drafts included: [num_taps, num_tokens, hidden_size].

        They are valid until the next step, and may still be computed on the device. Called only after steps that it
        reads; where other stages compute them, it may have followed later plans by then.
        """

    def keep(self, slot: int, path: Sequence[int]) -> None:
        """These tokens of the tree that was drafted for a slot in the last step were right; `accept` follows."""

    def accept(self, slot: int, num_right: int) -> None:
        """`num_right` of the tokens that were drafted for a slot in the last step were right."""

    def forget(self, blocks: Sequence[int]) -> None:
        """These blocks hold keys and values that another replica computed, and none of the drafter."""

    def clear(self) -> None:
        """All slots are free."""

    @property
    def grows_trees(self) -> bool:
        """Whether its drafts may be trees."""
        return False

    def ahead(self, count: int, max_drafts: int) -> Iterator[Ahead]:
        """Yields the computations that it records to draft up to `max_drafts` tokens for each of `count` slots."""
        return iter(())

    def capture(self) -> None:
        """Capture graphs, before the first step."""

    def rehearse(self) -> None:
        """Launch every kernel of drafting. For a context in which a launch only compiles."""

    def close(self) -> None:
        """Destroy what was captured."""


class Tapped(Drafter):
    """In a stage behind the first: drafts nothing, but steps leave the hidden states that the first stage needs."""

    def __init__(self, taps: TapShape) -> None:
        self._taps = taps

    @property
    def taps(self) -> TapShape | None:
        return self._taps
