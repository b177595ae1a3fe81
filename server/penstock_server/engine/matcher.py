"""A grammar's matcher: takes in tokens and computes which may come next, on the caller's thread or apart from it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from penstock_server.engine.low_priority import LowPriority


class Matcher:
    """Used by one job at a time."""

    def __init__(self, matcher: Any, make_failed: Callable[[], Any]) -> None:
        """`make_failed` gives a matcher of the same tokenizer that has failed."""
        self._matcher = matcher
        self._make_failed = make_failed
        # The failed one, from the first call apart on.
        self._second: Any = None

    def consume(self, token_id: int, apart: LowPriority | None) -> None:
        """Take in a token."""
        if apart is None:
            self._matcher.consume_token(token_id)
        else:
            apart.consume(self._matcher, self._failed(), token_id)

    def num_legal(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens may come next, one after the other."""
        return int(self._matcher.validate_tokens(list(token_ids)))

    def roll_back(self, count: int) -> None:
        """Take back the last `count` tokens."""
        if count:
            self._matcher.rollback(count)

    def fill(self, masks: torch.Tensor, apart: LowPriority | None) -> None:
        """Compute the mask of the next token.

        masks: [2, ceil(vocab_size / 32)] int32, of which the first row is it; one row is enough where none is apart.
        """
        if apart is None:
            self._matcher.unsafe_compute_mask_ptr(masks.data_ptr(), masks.shape[1] * masks.element_size())
        else:
            apart.fill(self._matcher, self._failed(), masks)

    def error(self) -> str:
        """The matcher's error, in llguidance's words; empty if there is none."""
        return str(self._matcher.get_error()) if self._matcher.is_error() else ""

    def _failed(self) -> Any:
        self._second = self._second or self._make_failed()
        return self._second
