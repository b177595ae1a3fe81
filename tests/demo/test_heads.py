"""The drafters of the demo model: their files, and a step of their training."""

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from demo import eagle, medusa
from demo.evaluate import FOLDER
from demo.packing import Chunk

LIMIT_BYTES = 320_000
LIMIT_OF_EAGLE = 1_200_000


def test_a_row_counts_if_all_up_to_its_target_are_of_the_reply() -> None:
    ids = torch.arange(10, 20).view(1, 10)
    chunk = Chunk(ids, torch.ones(1), torch.tensor([2, 3, 4, 7, 8]), torch.tensor([13, 14, 15, 18, 19]))
    rows, targets = medusa.rows_of(chunk, 2)
    assert (rows.tolist(), targets.tolist()) == ([2, 3, 7], [14, 15, 19])
    rows, targets = medusa.rows_of(chunk, 3)
    assert (rows.tolist(), targets.tolist()) == ([2], [15])


def test_the_shipped_heads_are_small_and_of_the_form_of_tgi() -> None:
    files = {path.name: path for path in medusa.HEADS.iterdir()}
    assert files.keys() == {"config.json", "medusa_lm_head.safetensors"}
    assert sum(path.stat().st_size for path in files.values()) < LIMIT_BYTES
    config = json.loads(files["config.json"].read_text(encoding="utf-8"))
    with safe_open(files["medusa_lm_head.safetensors"], framework="pt") as tensors:
        assert len(list(tensors.keys())) == 2 * config["medusa_num_heads"]


def test_a_step_trains_the_heads_alone(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    model = LlamaForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    medusa.ship(medusa.train(model, tokenizer, medusa.Recipe(steps=1, tokens=200)), tmp_path)
    tensors = load_file(tmp_path / "medusa_lm_head.safetensors")
    assert len(tensors) == 8
    assert all(tensor.dtype == torch.bfloat16 and tensor.any() for tensor in tensors.values())
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())


def test_the_shipped_head_of_eagle_is_small_and_of_the_published_form() -> None:
    files = {path.name: path for path in eagle.HEAD.iterdir()}
    assert files.keys() == {"config.json", "model.safetensors"}
    assert sum(path.stat().st_size for path in files.values()) < LIMIT_OF_EAGLE
    tensors = load_file(files["model.safetensors"])
    token_ids = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    assert tensors["t2d"].nonzero().flatten().tolist() == token_ids.tolist()


def test_a_step_trains_the_head_of_eagle_alone(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    model = LlamaForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    vocabulary = torch.arange(0, model.config.vocab_size, 2)
    head = eagle.train(model, tokenizer, eagle.Recipe(steps=1, tokens=200), vocabulary)
    eagle.ship(head, vocabulary, model.config.vocab_size, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors.keys() == load_file(eagle.HEAD / "model.safetensors").keys()
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())
