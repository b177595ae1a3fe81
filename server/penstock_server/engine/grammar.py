"""Constrained decoding: a matcher per constrained slot, whose masks are computed while the model runs.

A matcher's state follows from the slot's generated tokens alone, so it survives preemption and replay. Everything runs
on one thread, in order of submission: build, mask and advance need no locks, and llguidance releases the GIL.
"""

import importlib.util
import json
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from penstock_server.base.errors import ErrorCode, SlotRefused
from penstock_server.engine.plan import Admit, Grammar
from penstock_server.engine.step import SampledRow

# Of 1 to 2 kB each; the router checks a grammar under the same limits (grammar/compiler.rs).
_MAX_LEXER_STATES = 50_000
_MAX_ITEMS_IN_ROW = 4_000
# Schemas are compiled by recursion; the router bounds the levels for this (grammar/schema.rs).
_STACK_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class GrammarMasks:
    """Which tokens are allowed in the constrained rows of a step."""

    rows: list[int]
    # [len(rows), ceil(vocab_size / 32)] int32, one bit per token, least significant first.
    bits: torch.Tensor
    # Rows whose grammar cannot continue, with the reason.
    errors: dict[int, str] = field(default_factory=dict)


class Grammars:
    """The matchers of a shard. Used from the step loop's thread only."""

    def __init__(self, tokenizer_path: Path, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self.available = tokenizer_path.is_file() and _is_installed()
        self._tokenizer_path = tokenizer_path
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._matchers: dict[int, Future[Any]] = {}
        self._tokenizer: Any = None
        self._thread = _start_thread()

    def clear(self) -> None:
        """Forget every matcher."""
        self._matchers.clear()

    def retire(self, slot: int) -> None:
        """Forget a slot's matcher, if it has one."""
        self._matchers.pop(slot, None)

    def admit(self, admit: Admit) -> None:
        """Start building a slot's matcher; an error in its text is reported with its first mask."""
        if admit.grammar is None:
            return
        if not self.available:
            raise SlotRefused("grammar is not supported by this shard", ErrorCode.GRAMMAR)
        generated = admit.token_ids[admit.prompt_len :]
        self._matchers[admit.slot] = self._thread.submit(self._build, admit.grammar, generated)

    def start_masks(self, rows: list[SampledRow]) -> "Future[GrammarMasks] | None":
        """Begin to compute the masks of the constrained rows; None when there are none."""
        constrained = [
            (number, self._matchers[row.slot])
            for number, row in enumerate(rows)
            if row.slot in self._matchers
        ]
        return self._thread.submit(self._masks, constrained) if constrained else None

    def advance(self, rows: list[SampledRow], token_ids: list[int], masks: GrammarMasks) -> None:
        """Feed the chosen tokens to their matchers."""
        for number in masks.rows:
            if number not in masks.errors:
                self._thread.submit(_consume, self._matchers[rows[number].slot], token_ids[number])

    def _build(self, grammar: Grammar, generated: list[int]) -> Any:
        from llguidance import LLMatcher, LLParserLimits

        builders: dict[str, Callable[[str], str]] = {
            "json_schema": LLMatcher.grammar_from_json_schema,
            "regex": LLMatcher.grammar_from_regex,
            "lark": LLMatcher.grammar_from_lark,
        }
        if grammar.kind not in builders:
            raise ValueError("unknown kind of grammar")
        if self._tokenizer is None:
            self._tokenizer = self._load_tokenizer()
        limits = LLParserLimits(
            max_lexer_states=_MAX_LEXER_STATES, max_items_in_row=_MAX_ITEMS_IN_ROW, verbose_errors=False
        )
        text = builders[grammar.kind](grammar.text)
        matcher = LLMatcher(self._tokenizer, text, log_level=0, limits=limits)
        if generated:
            matcher.consume_tokens(generated)
        return matcher

    def _load_tokenizer(self) -> Any:
        from llguidance import LLTokenizer

        described = json.loads(self._tokenizer_path.read_bytes())
        described["padding"] = described["truncation"] = None
        eos = list(self._eos_token_ids) or None
        return LLTokenizer(json.dumps(described), n_vocab=self._vocab_size, eos_token=eos)

    def _masks(self, constrained: list[tuple[int, "Future[Any]"]]) -> GrammarMasks:
        width = -(-self._vocab_size // 32)
        masks = GrammarMasks(
            [number for number, _ in constrained], torch.zeros(len(constrained), width, dtype=torch.int32)
        )
        for (number, matcher), bits in zip(constrained, masks.bits, strict=True):
            error = _fill(matcher, bits)
            if error:
                masks.errors[number] = error
                bits.fill_(-1)  # the token of this row is not used, but one must be found
        return masks


def _start_thread() -> ThreadPoolExecutor:
    """One thread with a large stack: threads take the size that is set while they start."""
    usual = threading.stack_size(_STACK_BYTES)
    try:
        thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        thread.submit(lambda: None).result()
    finally:
        threading.stack_size(usual)
    return thread


def _is_installed() -> bool:
    return importlib.util.find_spec("llguidance") is not None


def _fill(building: "Future[Any]", bits: torch.Tensor) -> str:
    """Fill one row's bits; returns what is wrong with the grammar, or nothing."""
    error = building.exception()
    if error is not None:
        return f"the grammar cannot be built: {error}"
    matcher = building.result()
    if not matcher.is_error():
        matcher.unsafe_compute_mask_ptr(bits.data_ptr(), bits.numel() * bits.element_size())
    return f"the grammar cannot be used: {matcher.get_error()}" if matcher.is_error() else ""


def _consume(building: "Future[Any]", token_id: int) -> None:
    building.result().consume_token(token_id)
