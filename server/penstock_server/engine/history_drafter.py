"""The base of drafters that read tokens only: the prompt, the output, and the prediction that the request gave.

A prediction stands between prompt and output, as if it were the output of an earlier turn. So matches in it are
preferred to those in the prompt, and matches in the output to both.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from penstock_server.engine.drafting import Drafter
from penstock_server.engine.plan import Drafts, Numbers, Plan, Span
from penstock_server.engine.slots import Slots

# The longest run of last tokens that is looked for: longer ones say no more about what follows.
LONGEST_RUN = 24


class HistoryDrafter(Drafter):
    """Subclasses say how tokens follow from others."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        # The prediction of each slot that has one.
        self._predicted: dict[int, Numbers] = {}

    def draft_behind(self, tokens: Numbers, max_drafts: int) -> tuple[int, ...]:
        """Up to `max_drafts` tokens that may follow these."""
        raise NotImplementedError

    def follow(self, plan: Plan) -> None:
        for slot in plan.retired:
            self._predicted.pop(slot, None)
        for admit in plan.admitted:
            if admit.predicted_ids:
                self._predicted[admit.slot] = np.array(admit.predicted_ids, dtype=np.int64)

    def clear(self) -> None:
        self._predicted.clear()

    def draft(self, spans: Sequence[Span], wanted: Mapping[int, int]) -> Drafts:
        known = self._slots.rows.known_tokens({slot: self._slots.states[slot].length for slot in wanted})
        return {
            slot: self.draft_behind(self._history(slot, known[slot]), most) for slot, most in wanted.items()
        }

    def _history(self, slot: int, tokens: Numbers) -> Numbers:
        predicted = self._predicted.get(slot)
        if predicted is None:
            return tokens
        return with_prediction(tokens, self._slots.states[slot].prompt_len, predicted)


def with_prediction(tokens: Numbers, prompt_len: int, predicted: Numbers) -> Numbers:
    """The prompt, the prediction, and the output behind the end of the prompt, so that its first tokens are found where
    the prediction begins."""
    return np.concatenate([tokens[:prompt_len], predicted, tokens[max(0, prompt_len - LONGEST_RUN) :]])
