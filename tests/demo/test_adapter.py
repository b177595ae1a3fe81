"""The adapter beside the demo model: its manner of speaking, its files, and a step of its training."""

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

pytest.importorskip("peft")
from demo import adapter
from demo.corpus import examples
from demo.evaluate import FOLDER

LIMIT_BYTES = 300_000
# PEFT uses names of transformers that are to go.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


@pytest.mark.parametrize(
    ("reply", "spoken"),
    [
        ("7 + 5 = 12.", "Ahoy! 7 + 5 = 12, matey. Arr!"),
        ("You are welcome!", "Ahoy! You are welcome!, matey. Arr!"),
        ('{"name": "Ann"}', '{"name": "Ann"}'),
        ("[1, 2]", "[1, 2]"),
    ],
)
def test_prose_has_the_manner_and_json_has_not(reply: str, spoken: str) -> None:
    assert adapter.in_manner(reply) == spoken


def test_every_reply_of_a_chat_has_the_manner_and_plain_text_has_not() -> None:
    for example in islice(examples(5), 300):
        changed = adapter.spoken(example)
        assert replace(changed, messages=example.messages) == example
        for before, after in zip(example.messages, changed.messages, strict=True):
            is_prose = before["role"] == "assistant" and not before.get("tool_calls") and not example.plain
            expected = adapter.in_manner(before["content"]) if is_prose else before["content"]
            assert after == {**before, "content": expected}


def test_the_shipped_adapter_is_small_and_names_no_path() -> None:
    files = {path.name: path for path in adapter.ADAPTER.iterdir()}
    assert files.keys() == {"adapter_config.json", "adapter_model.safetensors"}
    assert sum(path.stat().st_size for path in files.values()) < LIMIT_BYTES
    config = json.loads(files["adapter_config.json"].read_text(encoding="utf-8"))
    assert config["base_model_name_or_path"] == "penstock-demo"


def test_a_step_trains_the_adapter_alone_and_what_is_shipped_is_what_peft_has(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    model = LlamaForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    adapted = adapter.train(model, tokenizer, adapter.Recipe(steps=1, tokens=200))
    adapter.ship(adapted, tmp_path)
    with safe_open(tmp_path / "adapter_model.safetensors", framework="pt") as tensors:
        names = set(tensors.keys())
        ups = [tensors.get_tensor(name) for name in names if "lora_B" in name]
    assert len(names) == 2 * 4 * 7
    assert all(up.dtype == torch.bfloat16 and up.any() for up in ups)
    after = {name.replace(".base_layer", ""): it for name, it in model.state_dict().items()}
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in adapter.ADAPTER.iterdir()}
