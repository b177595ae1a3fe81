"""Makes matchers of grammars for one vocabulary, and keeps those that were built last.

Clients send the same schema again and again, and to copy a matcher takes a thousandth of the time to build one.
"""

import importlib.util
import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock_server.engine.matcher import Matcher
from penstock_server.engine.plan import Grammar

# A state takes 1 to 2 kB; the router checks a grammar under the same limits (grammar/compiler.rs).
_MAX_LEXER_STATES = 50_000
_MAX_ITEMS_IN_ROW = 4_000
# A kept matcher takes about 1 MB for a large schema. None has computed a mask, which would make it larger.
_MAX_KEPT = 64


class Matchers:
    """Used from several threads."""

    def __init__(self, tokenizer_path: Path, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self.available = tokenizer_path.is_file() and importlib.util.find_spec("llguidance") is not None
        self._tokenizer_path = tokenizer_path
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._tokenizer: Any = None
        self._tokenizer_lock = threading.Lock()
        # None takes in a token itself. The one that was used last is at the end.
        self._kept: OrderedDict[Grammar, Any] = OrderedDict()
        self._kept_lock = threading.Lock()

    def has(self, grammar: Grammar) -> bool:
        """Whether to build a matcher of this grammar takes no time."""
        return grammar in self._kept

    def build(self, grammar: Grammar) -> Matcher:
        """A matcher that has taken in nothing; a ValueError if the text is wrong."""
        matcher = (self._known(grammar) or self._compiled(grammar)).deep_copy()
        return Matcher(matcher, self._failed)

    def _known(self, grammar: Grammar) -> Any:
        with self._kept_lock:
            found = self._kept.get(grammar)
            if found is not None:
                self._kept.move_to_end(grammar)
            return found

    def _compiled(self, grammar: Grammar) -> Any:
        found = self._compile(grammar)
        with self._kept_lock:
            self._kept[grammar] = found
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        return found

    def _compile(self, grammar: Grammar) -> Any:
        from llguidance import LLMatcher, LLParserLimits

        builders: dict[str, Callable[[str], str]] = {
            "json_schema": LLMatcher.grammar_from_json_schema,
            "regex": LLMatcher.grammar_from_regex,
            "lark": LLMatcher.grammar_from_lark,
        }
        if grammar.kind not in builders:
            raise ValueError("unknown kind of grammar")
        limits = LLParserLimits(
            max_lexer_states=_MAX_LEXER_STATES, max_items_in_row=_MAX_ITEMS_IN_ROW, verbose_errors=False
        )
        text = builders[grammar.kind](grammar.text)
        return LLMatcher(self._shared_tokenizer(), text, log_level=0, limits=limits)

    def _failed(self) -> Any:
        """A matcher that allows nothing."""
        from llguidance import LLMatcher

        matcher = LLMatcher(self._shared_tokenizer(), LLMatcher.grammar_from_regex(""), log_level=0)
        matcher.consume_token(0)
        return matcher

    def _shared_tokenizer(self) -> Any:
        with self._tokenizer_lock:
            if self._tokenizer is None:
                self._tokenizer = self._load_tokenizer()
            return self._tokenizer

    def _load_tokenizer(self) -> Any:
        from llguidance import LLTokenizer

        described = json.loads(self._tokenizer_path.read_bytes())
        described["padding"] = described["truncation"] = None
        eos = list(self._eos_token_ids) or None
        return LLTokenizer(json.dumps(described), n_vocab=self._vocab_size, eos_token=eos)
