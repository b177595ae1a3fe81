"""Ways to draft for the demo model, whatever its size: flags of a server, and what it generates."""

import json
import shutil
from functools import cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file

from benchmarks.serving.drafts_in_turn import Text
from benchmarks.serving.widened import DEMO
from demo.corpus import examples
from demo.text import render_prompt

# A text that is guessed, in steps that each give up to five tokens.
_LEAST_WHERE_RIGHT = 2.0
_MODEL, _CONFIG = "model.safetensors", "config.json"
# Questions to the demo model, in words that neither it nor its heads were trained with.
_NUM_QUESTIONS, _SEED = 1500, 11

# Three tokens are far likelier than all others, so the last few tokens soon repeat.
REPEATING = Text(
    "by n-gram, text that repeats",
    {"logit_bias": {"300": 60, "301": 60, "302": 60}},
    _LEAST_WHERE_RIGHT,
)
DRAWN = Text("by n-gram, text that does not", {"temperature": 1.2})


class Way(NamedTuple):
    """Flags of a server that drafts, and what it generates."""

    flags: tuple[str, ...]
    texts: tuple[Text, ...]
    has_trees: bool = False


def by_ngram(*texts: Text) -> Way:
    return Way(("--speculation=ngram",), texts)


def by_model(folder: Path, name: str, is_right: bool = False) -> Way:
    """`is_right`: whether the model that drafts knows what is generated, and costs less."""
    flags = ("--speculation=draft", f"--draft-model={folder}")
    return Way(flags, (_drawn(name, _LEAST_WHERE_RIGHT if is_right else None),))


def by_heads() -> list[Way]:
    """The heads of MEDUSA and of EAGLE, which draft chains and trees."""
    trees = "--speculate-branches=3"
    ways = []
    for name, flag in (
        ("heads of MEDUSA", "--speculation=medusa"),
        ("a head of EAGLE", "--speculation=eagle"),
    ):
        ways.append(Way((flag,), (_answers(f"by {name}, answers"), _drawn(f"by {name}, noise"))))
        ways.append(Way((flag, trees), (_answers(f"by {name}, trees, answers"),), has_trees=True))
    return ways


def _answers(name: str) -> Text:
    """Answers to questions, which the heads were trained for."""
    return Text(name, {}, prompts=_questions())


@cache
def _questions() -> tuple[str, ...]:
    asked = (example for example in examples(_SEED, "test") if not (example.plain or example.tools))
    return tuple(render_prompt(example) for example in islice(asked, _NUM_QUESTIONS))


def _drawn(name: str, least_at_one: float | None = None) -> Text:
    return Text(name, {"temperature": 1.0}, least_at_one)


def write_noise(folder: Path) -> Path:
    """A model of one layer with the vocabulary of the demo model, which was never trained."""
    folder.mkdir(parents=True)
    config = {**json.loads((DEMO / _CONFIG).read_text()), "num_hidden_layers": 1}
    (folder / _CONFIG).write_text(json.dumps(config))
    torch.manual_seed(3)
    tensors = {
        name: torch.ones_like(tensor) if tensor.dim() == 1 else _noise(tensor, config["initializer_range"])
        for name, tensor in load_file(DEMO / _MODEL).items()
        if ".layers." not in name or ".layers.0." in name
    }
    save_file(tensors, folder / _MODEL, metadata={"format": "pt"})
    shutil.copy(DEMO / "tokenizer.json", folder)
    return folder


def _noise(tensor: torch.Tensor, deviation: float) -> torch.Tensor:
    return (torch.randn(tensor.shape) * deviation).to(tensor.dtype)
