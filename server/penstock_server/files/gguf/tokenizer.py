"""From the metadata of a GGUF file to tokenizer.json and tokenizer_config.json: byte-level BPE, and sentencepiece as
Llama 2 has it. The tokens that end a sequence are found here, too.
"""

from collections.abc import Iterator
from typing import Any

from penstock_server.architectures.fields import Fields
from penstock_server.base.errors import StartError
from penstock_server.files.gguf.parts import Parts
from penstock_server.files.gguf.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer, byte_level

_PREFIX = "tokenizer.ggml."
_TEMPLATE = "tokenizer.chat_template"
_MODELS = ("gpt2", "llama")
_HINT = "or give --tokenizer"
# Types of tokens.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
# The types of tokens that a merge may make: nobody types a control token.
_MERGED = (_NORMAL, _USER_DEFINED, _UNUSED)
# The character that stands for a space.
_SPACE = "\u2581"
# Keys of tokens in tokenizer_config.json.
_NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Texts of tokens that end a turn, for files that do not name theirs.
_END_TEXTS = (
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>",
    "<EOT>", "<|END_OF_TURN_TOKEN|>", "[|endofturn|]", "<|return|>", "<|call|>", "<|user|>",
)  # fmt: skip


class GgufTokenizer:
    """The tokenizer of a file; raises StartError where it is of a kind that is not known."""

    def __init__(self, parts: Parts) -> None:
        self._path = parts.first
        aliases = {key.removeprefix(_PREFIX): key for key in parts.metadata if key.startswith(_PREFIX)}
        self._fields = Fields(parts.metadata, parts.first, aliases)
        self.templates = {
            key.removeprefix(_TEMPLATE).removeprefix("."): value
            for key, value in parts.metadata.items()
            if key == _TEMPLATE or key.startswith(f"{_TEMPLATE}.")
        }
        self.tokens = self._texts("tokens")
        self.types = self._types()

    @staticmethod
    def is_in(parts: Parts) -> bool:
        """Whether a file has tokens."""
        return f"{_PREFIX}tokens" in parts.metadata

    def check_size(self, vocab_size: int) -> None:
        """Raise StartError for more tokens than the model has rows for."""
        if len(self.tokens) > vocab_size:
            raise self._error(
                "tokens", len(self.tokens), f"at most {vocab_size} tokens, as token_embd.weight has rows"
            )

    def end_ids(self) -> list[int]:
        """The tokens that end a sequence: those that the file names, and known ones for the end of a turn."""
        named = (self._id(key) for key in _ENDS)
        known = (
            number for number, text in enumerate(self.tokens) if text in _END_TEXTS and self._is_added(number)
        )
        return sorted({number for number in (*named, *known) if number is not None})

    def bos_id(self) -> int | None:
        """The token that a prompt begins with."""
        return self._id("bos_token_id")

    def tokenizer(self) -> dict[str, Any]:
        """The contents of tokenizer.json."""
        kind = self._fields.get("model")
        if kind not in _MODELS:
            raise self._error("model", kind, f"{' or '.join(_MODELS)}, {_HINT}")
        twice = len(self.tokens) - len(set(self.tokens))
        if twice:
            raise StartError(
                f"{self._path}: {_PREFIX}tokens has {twice} tokens twice; use another file, {_HINT}"
            )
        return self._byte_level() if kind == "gpt2" else self._sentencepiece()

    def settings(self) -> dict[str, Any]:
        """The contents of tokenizer_config.json."""
        found: dict[str, Any] = {}
        for name, key in _NAMED.items():
            number = self._id(f"{key}_token_id")
            if number is not None:
                found[name] = self.tokens[number]
        for name, template in self.templates.items():
            if not isinstance(template, str):
                raise self._error(f"{_TEMPLATE}.{name}", template, "a text")
        named = [{"name": name or "default", "template": text} for name, text in self.templates.items()]
        if list(self.templates) == [""]:
            return {**found, "chat_template": self.templates[""]}
        return {**found, "chat_template": named} if named else found

    def _byte_level(self) -> dict[str, Any]:
        name = self._fields.get("pre")
        rule = PRE_TOKENIZERS.get(str(name))
        if rule is None:
            raise self._error("pre", name, f"one of {', '.join(PRE_TOKENIZERS)}, {_HINT}")
        merges = [] if self._has_bytes_only() and not self._has("merges") else self._texts("merges")
        pairs = [merge.split(" ") for merge in merges]
        wrong = next((merge for merge, pair in zip(merges, pairs, strict=True) if len(pair) != 2), None)
        if wrong is not None:
            raise self._error("merges", wrong, "two texts with a space between them")
        self._check_merges(pairs)
        return {
            **self._whole(adds_bos=rule.adds_bos),
            "pre_tokenizer": _sequence("pretokenizers", rule.steps()),
            "decoder": byte_level(uses_regex=False),
            "model": self._model(pairs, rule),
        }

    def _sentencepiece(self) -> dict[str, Any]:
        scores = self._fields.get("scores")
        if not isinstance(scores, list) or len(scores) != len(self.tokens):
            raise self._error("scores", scores, f"a number for each of the {len(self.tokens)} tokens")
        has_prefix = self._fields.fact("add_space_prefix") if self._has("add_space_prefix") else True
        prepend = [{"type": "Prepend", "prepend": _SPACE}] if has_prefix else []
        strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if has_prefix else []
        replace = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
        unreplace = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
        unknown = self._id("unknown_token_id")
        return {
            **self._whole(adds_bos=True),
            "normalizer": _sequence("normalizers", [*prepend, replace]),
            "decoder": _sequence("decoders", [unreplace, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]),
            "model": {
                **self._model(_merges(self.tokens, self.types, scores), PreTokenizer()),
                "byte_fallback": _BYTE in self.types,
                "fuse_unk": True,
                "unk_token": None if unknown is None else self.tokens[unknown],
            },
        }

    def _whole(self, adds_bos: bool) -> dict[str, Any]:
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                self._added(number) for number in range(len(self.tokens)) if self._is_added(number)
            ],
            "normalizer": None,
            "pre_tokenizer": None,
            "post_processor": self._post_processor(adds_bos),
        }

    def _model(self, pairs: list[list[str]], rule: PreTokenizer) -> dict[str, Any]:
        return {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": rule.ignores_merges,
            "vocab": {text: number for number, text in enumerate(self.tokens)},
            "merges": pairs,
        }

    def _is_added(self, number: int) -> bool:
        return self.types[number] in (_UNKNOWN, _CONTROL, _USER_DEFINED)

    def _added(self, number: int) -> dict[str, Any]:
        return {
            "id": number,
            "content": self.tokens[number],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": self.types[number] != _USER_DEFINED,
        }

    def _post_processor(self, adds_bos: bool) -> dict[str, Any] | None:
        """The tokens around a prompt."""
        ends = (("add_bos_token", "bos_token_id", adds_bos), ("add_eos_token", "eos_token_id", False))
        first, last = (
            self._id(key) if (self._fields.fact(flag) if self._has(flag) else usual) else None
            for flag, key, usual in ends
        )
        if first is None and last is None:
            return None
        single: list[dict[str, Any]] = [_special(self.tokens[first])] if first is not None else []
        single.append({"Sequence": {"id": "A", "type_id": 0}})
        pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
        if last is not None:
            single.append(_special(self.tokens[last]))
            pair.append(_special(self.tokens[last]))
        used = {self.tokens[number]: number for number in (first, last) if number is not None}
        special = {text: {"id": text, "ids": [number], "tokens": [text]} for text, number in used.items()}
        return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}

    def _check_merges(self, pairs: list[list[str]]) -> None:
        known = set(self.tokens)
        for left, right in pairs:
            for text in (left, right, left + right):
                if text not in known:
                    raise self._error("merges", f"{left} {right}", f"one of tokens, and {text!r} is none")

    def _has_bytes_only(self) -> bool:
        return all(len(text) == 1 or self._is_added(number) for number, text in enumerate(self.tokens))

    def _has(self, key: str) -> bool:
        return self._fields.get(key) is not None

    def _texts(self, key: str) -> list[str]:
        found = self._fields.get(key)
        if not isinstance(found, list) or not found or not all(isinstance(text, str) for text in found):
            raise self._error(key, found, f"a list of texts, {_HINT}")
        return found

    def _types(self) -> list[int]:
        found = self._fields.get("token_type", [_NORMAL] * len(self.tokens))
        if not isinstance(found, list) or len(found) != len(self.tokens):
            raise self._error("token_type", found, f"a number for each of the {len(self.tokens)} tokens")
        return found

    def _id(self, key: str) -> int | None:
        found = self._fields.get(key)
        if found is None:
            return None
        if not isinstance(found, int) or not 0 <= found < len(self.tokens):
            raise self._error(key, found, f"the number of one of the {len(self.tokens)} tokens")
        return found

    def _error(self, key: str, value: Any, expected: str) -> StartError:
        name = key if key.startswith("tokenizer.") else f"{_PREFIX}{key}"
        return Fields({}, self._path).error(name, value, expected)


def _merges(tokens: list[str], types: list[int], scores: list[float]) -> list[list[str]]:
    """Sentencepiece merges what makes the token with the best score: every way to make one, the best tokens first."""
    known = {text for text, kind in zip(tokens, types, strict=True) if kind in _MERGED}
    best = sorted(range(len(tokens)), key=lambda number: -scores[number])
    return [pair for number in best if tokens[number] in known for pair in _splits(tokens[number], known)]


def _splits(text: str, known: set[str]) -> Iterator[list[str]]:
    for at in range(1, len(text)):
        if text[:at] in known and text[at:] in known:
            yield [text[:at], text[at:]]


def _sequence(key: str, steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "Sequence", key: steps}


def _special(text: str) -> dict[str, Any]:
    return {"SpecialToken": {"id": text, "type_id": 0}}
