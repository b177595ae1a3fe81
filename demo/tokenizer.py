"""Trains the byte-level BPE tokenizer and writes its files."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from demo.corpus import examples
from demo.text import END_OF_TEXT, END_OF_TURN, TEMPLATE, render

VOCABULARY = 2048
SAMPLE = 60_000
CONTEXT = 2048
_SPECIAL = (END_OF_TEXT, "<|im_start|>", END_OF_TURN)
_TOOL_MARKS = ("<tool_call>", "</tool_call>")
# Digits stand alone, and a word may keep the line break that follows it ("user\n").
_SPLIT = r" ?\p{L}+\n?|\p{N}| ?[^\s\p{L}\p{N}]+|\s+"


def _untrained() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _texts(seed: int) -> Iterator[str]:
    for example in itertools.islice(examples(seed), SAMPLE):
        yield render(example)


def train(seed: int) -> Tokenizer:
    """A tokenizer fitted to a sample of the training text."""
    tokenizer = _untrained()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(_TOOL_MARKS),
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in _SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(seed), trainer)
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in _TOOL_MARKS])
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "bos_token": None,
        "eos_token": END_OF_TURN,
        "pad_token": END_OF_TEXT,
        "add_bos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
    }
    text = json.dumps(config, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    template = TEMPLATE.read_text(encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
