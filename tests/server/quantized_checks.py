"""The checks that a model in every quantized format must pass."""

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from driver import Driver, Sequence, execute_on, make_engine
from penstock_server.base.errors import StartError
from penstock_server.engine.engine import Engine
from quantized_models import Quantized, change_settings
from safetensors.torch import load_file, save_file
from thread_ranks import engines, execute_on_all

# Rows of a part of a matrix, which has so many inputs in all, from which input on the part begins: what they become.
Rounded = Callable[[torch.Tensor, int, int], torch.Tensor]


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    """Prompts of several lengths."""
    rng = random.Random(seed)
    return [[rng.randrange(301) for _ in range(rng.choice([1, 5, 17, 33]))] for _ in range(count)]


@contextmanager
def rounding_inputs(model: Any, num_shards: int, rounded: Rounded) -> Iterator[None]:
    """Make transformers round what the matrices of all layers are multiplied by, every shard its part of it."""

    def hook(num_parts: int, module: Any, inputs: tuple[torch.Tensor]) -> torch.Tensor:
        (x,) = inputs
        share = module.in_features // num_parts
        parts = torch.split(x.flatten(0, -2), share, dim=1)
        found = [rounded(part, module.in_features, number * share) for number, part in enumerate(parts)]
        return torch.cat(found, 1).view_as(x)

    handles = []
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and "lm_head" not in name:
            is_shared = name.endswith(("o_proj", "down_proj"))
            handles.append(module.register_forward_pre_hook(partial(hook, num_shards if is_shared else 1)))
    yield
    for handle in handles:
        handle.remove()


def check_tokens(model: Quantized, **options: Any) -> None:
    """Tokens are those of transformers, in mixed batches, in chunks and over blocks that a prompt finds again."""
    engine = make_engine(model.folder, **options)
    engine.cache.spoil()  # nothing that was not written may be read
    given = [*prompts(2), prompts(1)[0]]
    expected = {tuple(prompt): oracle.greedy(model.oracle, prompt, 4) for prompt in given}
    for seed, chunk in ((0, 64), (1, 7)):
        engine.clear()
        found = Driver(execute_on(engine)).run(
            [Sequence(prompt, 4) for prompt in given], seed, max_chunk=chunk
        )
        _compare(found, expected)
    _check_prefix(engine, model)


def _check_prefix(engine: Engine, model: Quantized) -> None:
    """A prompt that begins with blocks of another is computed from there."""
    engine.clear()
    driver = Driver(execute_on(engine))
    (donor,) = driver.run([Sequence(prompts(1)[0], 4)])
    again = Sequence(donor.tokens, 4)
    driver.share_prefix(donor, again)
    driver.run([again])
    _compare([again], {tuple(again.prompt): oracle.greedy(model.oracle, again.prompt, 4)})


def check_ranks(model: Quantized, size: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """A group of shards gives the tokens of transformers."""
    given = prompts(2, seed=3)
    expected = {tuple(prompt): oracle.greedy(model.oracle, prompt, 4) for prompt in given}
    with engines(model.folder, size, monkeypatch, **options) as ranks:
        found = Driver(execute_on_all(ranks)).run([Sequence(prompt, 4) for prompt in given])
    _compare(found, expected)


def _compare(found: list[Sequence], expected: dict[tuple[int, ...], Any]) -> None:
    for sequence in found:
        tokens, logprobs = expected[tuple(sequence.prompt)]
        assert sequence.output == tokens
        assert sequence.logprobs == pytest.approx(logprobs, abs=1e-3)


def check_refusal(
    model: Quantized,
    settings: dict[str, Any],
    spoil: Callable[[dict[str, torch.Tensor]], object],
    names: str,
    tmp_path: Path,
) -> None:
    """With other settings, or tensors that are spoilt, a start says what is wrong and where."""
    folder = Path(shutil.copytree(model.folder, tmp_path / "model"))
    change_settings(folder, settings)
    tensors = load_file(folder / "model.safetensors")
    spoil(tensors)
    save_file(tensors, folder / "model.safetensors")
    message = refusal(folder)
    assert names in message
    assert str(folder) in message


def refusal(folder: Path, **options: Any) -> str:
    """The error message of a start."""
    with pytest.raises(StartError) as refused:
        make_engine(folder, **options)
    message = str(refused.value)
    assert "\n" not in message
    return message
