"""The corpus is the same everywhere, and the shipped model loads, fits and answers."""

import hashlib
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from demo.corpus import arithmetic, examples, extraction, names, records, stories, tools, words
from demo.corpus.arithmetic import Sum
from demo.corpus.example import Example, asked, assistant, user
from demo.corpus.phrasing import expand
from demo.evaluate import FOLDER, Model, judge
from demo.packing import batch
from demo.text import render

LIMIT_BYTES = 16_000_000
FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
}


@pytest.fixture(scope="module")
def model() -> Model:
    torch.set_num_threads(1)
    return Model(FOLDER)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


def _digest(seed: int, count: int = 300) -> str:
    digest = hashlib.sha256()
    for example in itertools.islice(examples(seed), count):
        digest.update(render(example).encode())
    return digest.hexdigest()


def test_the_same_seed_makes_the_same_corpus() -> None:
    assert _digest(7) == _digest(7)
    assert _digest(7) != _digest(8)


def test_training_never_sees_held_out_operands() -> None:
    rng = random.Random(1)
    for sign in "+-*/":
        drawn = {arithmetic.draw(rng, "train", sign) for _ in range(2000)}
        assert not any(arithmetic.is_held_out(it.a, sign, it.b) for it in drawn)
        held_out = {arithmetic.draw(rng, "test", sign) for _ in range(50)}
        assert all(arithmetic.is_held_out(it.a, sign, it.b) for it in held_out)


def _strings(text: str) -> set[str]:
    value = json.loads(text)
    return {str(it) for it in (value.values() if isinstance(value, dict) else value)}


def test_training_never_copies_held_out_names_and_words() -> None:
    rng = random.Random(2)
    replies = [extraction.make(rng, "train").messages[-1]["content"] for _ in range(3000)]
    copied = {part for reply in replies for value in _strings(reply) for part in value.split()}
    assert len(copied) > 3000
    assert not copied & (names.HELD_OUT | words.HELD_OUT)


def test_training_never_asks_in_held_out_phrasings() -> None:
    for phrasings in (
        extraction.ASKS,
        stories.MORE,
        stories.FEWER,
        *(d.sentences for d in extraction.DOMAINS),
    ):
        asked_in_training = {text for pattern in phrasings.train for text in expand(pattern)}
        assert not asked_in_training & {text for pattern in phrasings.held_out for text in expand(pattern)}


@pytest.mark.parametrize(
    ("calculation", "answer"),
    [
        (Sum(7, "+", 5, 12), "7 + 5 = 12."),
        (Sum(58, "+", 945, 1003), "58 + 945: 8+5=13, 5+4+1=10, 0+9+1=10, so 58 + 945 = 1003."),
        (Sum(907, "-", 856, 51), "907 - 856: 7-6=1, 10-5=5, 9-8-1=0, so 907 - 856 = 51."),
        (Sum(48, "-", 97, -49), "48 - 97 = -(97 - 48): 17-8=9, 9-4-1=4, so 48 - 97 = -49."),
        (
            Sum(17, "*", 12, 204),
            "17 * 12: 10*12=120, 7*12=84, 120+84: 0+4=4, 2+8=10, 1+0+1=2, so 17 * 12 = 204.",
        ),
        (Sum(42, "/", 6, 7), "42 / 6: 10*6=60>42, 5*6=30<42, 6*6=36<42, 7*6=42, so 42 / 6 = 7."),
        (Sum(33, "/", 3, 11), "33 / 3: 10*3=30<33, 11*3=33, so 33 / 3 = 11."),
        (Sum(9, "/", 3, 3), "9 / 3: 10*3=30>9, 5*3=15>9, 4*3=12>9, 3*3=9, so 9 / 3 = 3."),
    ],
)
def test_answers_restate_the_task_and_show_the_work(calculation: Sum, answer: str) -> None:
    assert calculation.answer() == answer


def test_records_agree_with_their_text() -> None:
    rng = random.Random(4)
    for _ in range(300):
        text, values = records.draw(rng, "train")
        assert all(str(value).lower() in text.lower() for value in values.values())
        assert all(key in text.lower() for key in values)


def test_shipped_files_are_complete_and_small() -> None:
    sizes = {path.name: path.stat().st_size for path in Path(FOLDER).iterdir()}
    assert sizes.keys() >= FILES
    assert sum(sizes.values()) <= LIMIT_BYTES


def test_heads_divide_for_tensor_parallelism(model: Model) -> None:
    config = model.model.config
    assert config.head_dim == 64
    assert config.num_key_value_heads % 4 == 0
    assert config.vocab_size % 8 == 0


@pytest.mark.parametrize(
    "text",
    [
        "What is 12 + 30?",
        "two  spaces,\ttab\r\n\n and lines\n",
        "naïve café, 東京, Ελλάδα, 🙂‍↕️",
        "<|im_start|>user\n<tool_call>\n{}\n</tool_call><|im_end|>",
        "\u0000\u0001\u007f\u0085\u2028\ufeff",
        "١٢٣ ½ Ⅷ",
    ],
)
def test_tokenizer_gives_every_text_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_tokenizer_gives_random_unicode_back(tokenizer: Tokenizer) -> None:
    rng = random.Random(3)
    points = [i for i in range(0x3000) if not 0xD800 <= i < 0xE000]
    for _ in range(50):
        text = "".join(chr(rng.choice(points)) for _ in range(40))
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_digits_are_tokens_of_their_own(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("2048+7").tokens == ["2", "0", "4", "8", "+", "7"]


def test_template_writes_tools_calls_and_results(model: Model) -> None:
    example = tools.answering(random.Random(5), "train")
    prompt = model.prompt(example)
    name = example.messages[1]["tool_calls"][0]["function"]["name"]
    assert prompt.startswith("<|im_start|>system\nTools:\n")
    assert f"{name}(" in prompt
    assert f'<tool_call>\n{{"name": "{name}", "arguments": {{"' in prompt
    assert prompt.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert render(example).startswith(prompt)


def test_template_takes_arguments_as_text(model: Model) -> None:
    call = {"function": {"name": "get_time", "arguments": '{"city": "Oslo"}'}}
    as_text: list[dict[str, Any]] = [user("Hi"), assistant(""), assistant("")]
    as_text[1] = {"role": "assistant", "content": None, "tool_calls": [call]}
    text = model.prompt(Example("", tuple(as_text)))
    expected = '<tool_call>\n{"name": "get_time", "arguments": {"city": "Oslo"}}\n</tool_call>'
    assert expected in text


def test_a_batch_depends_on_seed_and_step_alone(tokenizer: Tokenizer) -> None:
    one, two = (batch(tokenizer, 1, 5, 1000)[0] for _ in range(2))
    assert torch.equal(one.ids, two.ids)
    assert torch.equal(one.targets, two.targets)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Could you tell me what 12 + 30 is?", "42"),
        ("Please work out 250 minus 75 for me.", "175"),
        ("Could you name the capital city of France?", "Paris"),
        ("Can you explain what --num-shard does?", "number of shards"),
        ("Do you know the opposite of hot?", "cold"),
        ("With which command do I start Penstock?", "make serve"),
    ],
)
def test_answers_in_phrasings_it_never_saw(model: Model, question: str, answer: str) -> None:
    example = asked("check", question, "", key=answer)
    (reply,) = model.replies([example])
    assert judge(example, reply).right, reply


def test_calls_tools_well_formed_and_mostly_right(model: Model) -> None:
    rng = random.Random(11)
    asked_for = [tools.calling(rng, "test") for _ in range(32)]
    verdicts = [judge(e, reply) for e, reply in zip(asked_for, model.replies(asked_for), strict=True)]
    assert all(verdict.valid for verdict in verdicts)
    assert sum(verdict.right for verdict in verdicts) >= 26


def test_completes_plain_text_and_stops(model: Model) -> None:
    example = Example("check", (user("The capital of France is"), assistant(" Paris.")), plain=True)
    (reply,) = model.replies([example])
    assert reply == " Paris."
