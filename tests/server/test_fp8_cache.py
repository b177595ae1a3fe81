"""A KV cache of 8 bits: near to the full one, half as large, with the checkpoint's scales where it has them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import oracle
import pytest
import thread_ranks
import tiny_model
import torch
from conftest import SavedModel
from driver import Driver, Sequence, execute_on, make_engine
from family_models import CASES
from penstock_server.base.errors import StartError
from penstock_server.engine.engine import Engine
from safetensors.torch import load_file, save_file

PROMPT = [7 * k % 301 for k in range(30)]
# Weights so small that a rounded key moves no probability far, as in a trained model.
CALM = {"initializer_range": 0.08}
NAMES = ("fp8", "fp8_e4m3", "fp8_e4m3fn")


def run(engine: Engine, seed: int | None = None) -> list[Sequence]:
    sequences = [Sequence(PROMPT[: 10 * (number + 1)], 6) for number in range(3)]
    return Driver(execute_on(engine)).run(sequences, seed)


def with_scales(source: Path, target: Path, key_scale: float, value_scale: float, name: str) -> Path:
    """The model, and scales of its keys and values under a name like "self_attn.{}_scale"."""
    tensors = load_file(source / "model.safetensors")
    for layer in range(sum(".input_layernorm.weight" in tensor for tensor in tensors)):
        for kind, scale in (("k", key_scale), ("v", value_scale)):
            tensors[f"model.layers.{layer}." + name.format(kind, kind)] = torch.tensor(scale)
    for file in source.iterdir():
        if file.suffix != ".safetensors":
            (target / file.name).write_bytes(file.read_bytes())
    save_file(tensors, target / "model.safetensors")
    return target


@pytest.mark.parametrize("name", NAMES)
def test_its_tokens_are_near_those_of_the_full_cache(
    saved_model: Callable[..., SavedModel], name: str
) -> None:
    model = saved_model("llama", **CALM)
    engine = make_engine(model.folder, kv_cache_dtype=name, is_poisoned=True)
    assert engine.description.kv_cache_dtype == "float8_e4m3fn"
    assert engine.cache.pools[0].dtype == torch.float8_e4m3fn
    for found, again in zip(run(engine), run(engine, seed=1), strict=True):
        first = oracle.greedy(model.oracle, found.prompt, 1)[1]
        assert found.logprobs[:1] == pytest.approx(first, abs=0.2)
        assert found.logprobs[:1] != pytest.approx(first, abs=1e-6), "nothing was narrowed"
        # Chunks, company and preemptions are none of its business.
        assert again.output == found.output
        assert again.logprobs == pytest.approx(found.logprobs, abs=2e-2)


def test_the_same_memory_holds_more_blocks(
    saved_model: Callable[..., SavedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_server.load.sizes.budget_bytes", lambda _world_size: 200_000)
    counts = [
        make_engine(
            saved_model("llama", **CALM).folder, num_blocks=None, max_sequence_len=64, kv_cache_dtype=kept
        ).description.limits.num_blocks
        for kept in ("auto", "fp8")
    ]
    assert counts[1] == pytest.approx(4 * counts[0], abs=4)


@pytest.mark.parametrize("name", ["self_attn.{}_scale", "self_attn.{}_proj.{}_scale"])
def test_the_scales_of_the_checkpoint_are_used(
    saved_model: Callable[..., SavedModel], tmp_path: Path, name: str
) -> None:
    plain = saved_model("llama", **CALM).folder
    scaled = with_scales(plain, tmp_path, 0.5, 0.25, name)
    found, expected = (
        make_engine(folder, kv_cache_dtype="fp8", is_poisoned=True) for folder in (scaled, plain)
    )
    assert {tuple(layer.scale) for layer in found.cache.layers} == {(0.5, 0.25)}
    outputs = [[sequence.logprobs for sequence in run(engine)] for engine in (found, expected)]
    # Powers of two move exponents only, but for numbers so small that they lose digits.
    for one, other in zip(*outputs, strict=True):
        assert one[:1] == pytest.approx(other[:1], abs=2e-2)
    stored = [
        engine.cache.pools[0].float().abs().nan_to_num().amax(dim=(0, 2, 3, 4, 5))
        for engine in (found, expected)
    ]
    assert (stored[0] / stored[1]).tolist() == pytest.approx([2.0, 4.0])


def test_a_full_cache_needs_no_scales(saved_model: Callable[..., SavedModel], tmp_path: Path) -> None:
    folder = with_scales(saved_model("llama", **CALM).folder, tmp_path, 0.5, 0.25, "self_attn.{}_scale")
    assert {tuple(layer.scale) for layer in make_engine(folder).cache.layers} == {(1.0, 1.0)}


def test_a_scale_that_is_none_is_refused(saved_model: Callable[..., SavedModel], tmp_path: Path) -> None:
    folder = with_scales(saved_model("llama", **CALM).folder, tmp_path, -1.0, 1.0, "self_attn.{}_scale")
    with pytest.raises(StartError, match="k_scale is -1; a scale must be above 0 and finite"):
        make_engine(folder, kv_cache_dtype="fp8")


def test_a_model_without_keys_and_values_has_no_use_for_it(tmp_path: Path) -> None:
    options = dict(CASES["mamba2"])
    tiny_model.save(tmp_path, tiny_model.TinyModel(options.pop("family"), options))
    with pytest.raises(
        StartError, match="--kv-cache-dtype fp8: no layer of this model keeps keys and values"
    ):
        make_engine(tmp_path, kv_cache_dtype="fp8")


def test_two_ranks_and_a_borrowed_model_have_it_too(
    saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = run(make_engine(saved_model("llama", **CALM).folder, kv_cache_dtype="fp8"))
    with thread_ranks.engines(
        saved_model("llama", **CALM).folder, 2, monkeypatch, kv_cache_dtype="fp8"
    ) as ranks:
        together = Driver(thread_ranks.execute_on_all(ranks)).run(
            [Sequence(PROMPT[: 10 * (number + 1)], 6) for number in range(3)]
        )
    for one, other in zip(alone, together, strict=True):
        assert other.logprobs[:1] == pytest.approx(one.logprobs[:1], abs=2e-2)
    borrowed = run(
        make_engine(saved_model("llama", **CALM).folder, kv_cache_dtype="fp8", model_impl="transformers")
    )
    for one, other in zip(alone, borrowed, strict=True):
        assert other.logprobs[:1] == pytest.approx(one.logprobs[:1], abs=2e-2)
