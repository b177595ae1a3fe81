"""Asks the shipped model what its training never saw, and writes the table of how it did.

Held out are phrasings everywhere, one in twenty pairs of operands, and all names, places and
values to copy. Greedy decoding through transformers, in batches, in the shipped bfloat16.
"""

import argparse
import itertools
import json
import logging
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from demo.corpus import (
    arithmetic,
    chat,
    conversation,
    extraction,
    penstock,
    stories,
    tools,
    units,
    world,
)
from demo.corpus.example import Example, Maker

log = logging.getLogger("demo.evaluate")
FOLDER = Path(__file__).parents[1] / "server" / "penstock_server" / "demo_model"
REPORT = Path(__file__).with_name("EVALUATION.md")
SEED = 2026
BATCH = 32
MAX_NEW_TOKENS = 128
_CALL = re.compile(r"<tool_call>\n(.*)\n</tool_call>", re.DOTALL)


def _calculation(sign: str) -> Maker:
    return lambda rng, split: arithmetic.calculation(rng, split, sign)


def _world_fact(rng: random.Random, split: Any) -> Example:
    name = rng.choice(list(world.RELATIONS))
    return world.question(rng, split, name, rng.choice(list(world.RELATIONS[name].pairs)))


def _penstock_fact(rng: random.Random, split: Any) -> Example:
    return rng.choices((penstock.flag, penstock.endpoint, penstock.note), (3, 3, 5))[0](rng, split)


# The kind of examples, and the number of its questions as a fraction of a full share.
CATEGORIES: dict[str, tuple[Maker, float]] = {
    "addition": (_calculation("+"), 1.0),
    "subtraction": (_calculation("-"), 1.0),
    "multiplication": (_calculation("*"), 0.5),
    "division": (_calculation("/"), 0.25),
    "comparison": (arithmetic.comparison, 0.5),
    "word problems": (stories.make, 0.5),
    "units": (units.conversion, 0.5),
    "world facts": (_world_fact, 1.0),
    "Penstock facts": (_penstock_fact, 1.0),
    "chat": (chat.intent, 0.5),
    "don't know": (chat.outside, 0.5),
    "memory": (chat.introduction, 0.25),
    "follow-up": (world.follow_up, 0.5),
    "multi-turn": (conversation, 0.25),
    "JSON extraction": (extraction.make, 0.5),
    "tool call": (tools.calling, 0.5),
    "answer after a tool": (tools.answering, 0.25),
    "tool not needed": (tools.declining, 0.25),
    "plain text: sums": (lambda rng, split: arithmetic.bare(rng, split, rng.choice("+-")), 0.5),
    "plain text: questions": (arithmetic.bare_question, 0.5),
    "plain text: facts": (world.stem, 0.5),
}


class Verdict(NamedTuple):
    """Whether the reply is right, and whether it is at least well formed."""

    right: bool
    valid: bool


class Score(NamedTuple):
    """The result of a category; `valid` is set only for JSON and tool calls."""

    category: str
    asked: int
    right: int
    valid: int | None


def _parsed(text: str) -> Any:
    """The JSON value, or None when there is none; None itself is never expected."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None


def _called(reply: str) -> Any:
    match = _CALL.fullmatch(reply)
    return _parsed(match.group(1)) if match else None


def judge(example: Example, reply: str) -> Verdict:
    """Compares a reply with what the example expects."""
    expected = example.messages[-1]
    text = reply.strip()
    if example.grade == "exact":
        return Verdict(text == expected["content"].strip(), True)
    if example.grade == "contains":
        found = re.search(rf"(?<![\w-]){re.escape(example.key)}(?![\w-])", text)
        return Verdict(found is not None, True)
    if example.grade == "json":
        value = _parsed(text)
        return Verdict(value == _parsed(expected["content"]), isinstance(value, dict))
    value = _called(text)
    valid = isinstance(value, dict) and set(value) == {"name", "arguments"}
    return Verdict(value == expected["tool_calls"][0]["function"], valid)


class Model:
    """The shipped model and its tokenizer."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)

    def prompt(self, example: Example) -> str:
        """The text before the reply, through the shipped chat template."""
        if example.plain:
            return str(example.messages[0]["content"])
        text = self.tokenizer.apply_chat_template(
            list(example.messages[:-1]),
            tools=list(example.tools) or None,
            add_generation_prompt=True,
            tokenize=False,
        )
        return str(text)

    def replies(self, examples: list[Example]) -> list[str]:
        """The greedy reply to each, generated together."""
        prompts = [self.prompt(example) for example in examples]
        inputs = self.tokenizer(prompts, return_tensors="pt", padding=True)
        with torch.inference_mode():
            output = self.model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
        new = output[:, inputs["input_ids"].shape[1] :]
        return [str(t) for t in self.tokenizer.batch_decode(new, skip_special_tokens=True)]


def _batches(examples: list[Example]) -> Iterator[list[Example]]:
    ordered = iter(sorted(examples, key=lambda e: len(str(e.messages))))
    while batch := list(itertools.islice(ordered, BATCH)):
        yield batch


def score(model: Model, category: str, examples: list[Example]) -> Score:
    """Generates replies to all examples, and logs the wrong ones."""
    verdicts = []
    for batch in _batches(examples):
        for example, reply in zip(batch, model.replies(batch), strict=True):
            verdicts.append(judge(example, reply))
            if not verdicts[-1].right:
                log.info("%s: %r -> %r", category, example.messages[-2]["content"], reply)
    formed = examples[0].grade in ("json", "tool")
    valid = sum(v.valid for v in verdicts) if formed else None
    return Score(category, len(verdicts), sum(v.right for v in verdicts), valid)


def evaluate(folder: Path, count: int, seed: int = SEED) -> list[Score]:
    """Every category; `count` is a full share of questions."""
    model = Model(folder)
    scores = []
    for category, (make, share) in CATEGORIES.items():
        rng = random.Random(f"{seed} {category}")
        examples = [make(rng, "test") for _ in range(round(count * share))]
        scores.append(score(model, category, examples))
        log.info("%s", scores[-1])
    return scores


def table(scores: list[Score]) -> str:
    """The scores as a Markdown table."""
    lines = ["| Category | Asked | Right | Accuracy | Well formed |", "|---|--:|--:|--:|--:|"]
    for it in scores:
        formed = "" if it.valid is None else f"{it.valid / it.asked:.1%}"
        accuracy = f"{it.right / it.asked:.1%}"
        lines.append(f"| {it.category} | {it.asked} | {it.right} | {accuracy} | {formed} |")
    return "\n".join(lines)


def report(scores: list[Score], count: int, seed: int) -> str:
    """The page that is committed next to this file."""
    return f"""# How the demo model does

Written by `python -m demo.evaluate --count {count} --seed {seed}` (`make demo-eval`).
Greedy decoding of the shipped bfloat16 weights. The questions use phrasings that training never
saw; operands, names, places and values to copy are held out too. The facts themselves are
trained, as nothing else could teach them. Right means the final equation for calculations, the whole
reply for units and answers made from a tool's result, the fact itself for facts and chat, the equal JSON value
for extraction, and the equal name and arguments for tool calls.

{table(scores)}
"""


def main() -> None:
    """Evaluates and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--count", type=int, default=500, help="questions in a full share")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--report", type=Path, default=REPORT)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    scores = evaluate(args.folder, args.count, args.seed)
    args.report.write_text(report(scores, args.count, args.seed), encoding="utf-8")


if __name__ == "__main__":
    main()
