"""Training goes on from its checkpoint as if it had never stopped, and starts from shipped weights."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from demo import train
from demo.checkpoint import Checkpoint, start_from
from demo.evaluate import FOLDER
from demo.packing import batch

RECIPE = train.Recipe(steps=4, tokens=200)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    torch.set_num_threads(1)
    return Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


def _state(
    tokenizer: Tokenizer, folder: Path
) -> tuple[LlamaForCausalLM, list[torch.optim.Optimizer], Checkpoint]:
    model = train.new_model(tokenizer, seed=1)
    makers = train.optimizers(model, RECIPE)
    return model, makers, Checkpoint(folder, model, makers)


def _step(
    tokenizer: Tokenizer, model: LlamaForCausalLM, makers: list[torch.optim.Optimizer], step: int
) -> None:
    train.train_step(model, makers, batch(tokenizer, 1, step, RECIPE.tokens), RECIPE.rate_at(step))


def test_a_restored_run_takes_the_same_next_step(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model, makers, checkpoint = _state(tokenizer, tmp_path)
    _step(tokenizer, model, makers, 0)
    checkpoint.save(1)
    again, restored, resumed = _state(tokenizer, tmp_path)
    assert resumed.load() == 1
    _step(tokenizer, model, makers, 1)
    _step(tokenizer, again, restored, 1)
    for one, two in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two)


def test_nothing_to_restore_is_step_zero(tokenizer: Tokenizer, tmp_path: Path) -> None:
    assert _state(tokenizer, tmp_path)[2].load() == 0


def test_shipped_weights_start_another_training(tokenizer: Tokenizer, tmp_path: Path) -> None:
    first, second = (train.new_model(tokenizer, seed) for seed in (1, 2))
    train.ship(first, tmp_path)
    start_from(tmp_path, second)
    for one, two in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one.bfloat16().float(), two)
