"""How text is split before byte-level BPE: GGUF files name the rule, `tokenizer.ggml.pre`, that this table has."""

from typing import Any, NamedTuple

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_TAIL}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_START = r"[^\r\n\p{L}\p{N}]?"
_SLASHED_TAIL = _TAIL.replace(r"[\r\n]*|", r"[\r\n/]*|", 1)
_TEKKEN = rf"{_START}{_UPPER}*{_LOWER}+|{_START}{_UPPER}+{_LOWER}*|\p{{N}}|{_SLASHED_TAIL}"
_GPT4O = (
    rf"{_START}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_START}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}|{_SLASHED_TAIL}"
)


class PreTokenizer(NamedTuple):
    """A rule."""

    # The patterns that split off pieces, in the order of application; empty: those of GPT-2.
    patterns: tuple[str, ...] = ()
    # Every digit is a piece of its own, and the rest is split as GPT-2 does.
    splits_digits: bool = False
    # A piece that is a token is not merged from its bytes.
    ignores_merges: bool = False
    # Whether prompts begin with the token for that where the file does not say.
    adds_bos: bool = False

    def steps(self) -> list[dict[str, Any]]:
        """The steps of tokenizer.json."""
        digits = [{"type": "Digits", "individual_digits": True}] if self.splits_digits else []
        splits = [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
            for pattern in self.patterns
        ]
        return [*digits, *splits, byte_level(uses_regex=not self.patterns)]


def byte_level(uses_regex: bool) -> dict[str, Any]:
    """The step that makes bytes of characters."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": uses_regex}


_GPT2 = PreTokenizer()
_DIGITS = PreTokenizer(splits_digits=True)
_QWEN = PreTokenizer((_QWEN2,))
_GLM = PreTokenizer((_LLAMA3,))
_LLAMA = PreTokenizer((_LLAMA3,), ignores_merges=True, adds_bos=True)
PRE_TOKENIZERS = {
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "jais", "mpt", "exaone4", "gigachat"), _GPT2),
    **dict.fromkeys(("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral"), _LLAMA),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2"), _QWEN),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), _GLM),
    "tekken": PreTokenizer((_TEKKEN,), ignores_merges=True, adds_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4"), PreTokenizer((_GPT4O,))),
}
