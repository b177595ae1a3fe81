"""Stages of layers: the tokens and log probabilities of one rank, whatever a request asks for and a layer keeps."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import adapter_folder
import pytest
import thread_ranks
from counting_model import medusa_heads
from drafting_driver import DraftingDriver
from driver import Driver, Execute, Sequence, engine_config, execute_on, make_engine
from family_models import CASES
from open_spans import EVERYTHING
from penstock_server.base.config import GroupConfig
from penstock_server.base.errors import ErrorCode, StartError
from penstock_server.engine.engine import Engine
from penstock_server.engine.plan import Grammar
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.files.folders import open_folders
from penstock_server.network.stage import Stage
from test_eagle import random_head
from test_out_of_memory import FIRST, LATER, PROMPT, break_in, failed
from test_parity import prompts

NUM_LAYERS = 5
# Steps of such heads are recorded.
RECORDED: dict[str, Any] = {
    "num_hidden_layers": NUM_LAYERS,
    "head_dim": 16,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 44, "norm_topk_prob": True}
SIZES: dict[str, Any] = {"num_slots": 16, "num_blocks": 400}


def batch(adapter_id: str = "") -> list[Sequence]:
    """Everything that changes what is sampled and told."""
    every = zip(prompts(len(EVERYTHING)), EVERYTHING.values(), strict=True)
    found = [Sequence(prompt, 6, params) for prompt, params in every]
    found.append(Sequence(prompts(1, seed=2)[0], 5, SamplingParams(prompt_logprobs=True, num_top_logprobs=2)))
    found.append(Sequence([5, 6, 7], 5, SamplingParams(), Grammar("regex", "[0-9]+")))
    if adapter_id:
        found.append(Sequence([5, 6, 7, 8], 5, adapter_id=adapter_id))
    return found


class Told(NamedTuple):
    """The results of sequences. One that waits for its grammar has other company, and is rounded otherwise."""

    tokens: list[Any]
    numbers: list[float]

    @classmethod
    def of(cls, sequences: list[Sequence]) -> "Told":
        tokens: list[Any] = []
        numbers: list[float] = []
        for it in sequences:
            assert not it.errors, it.errors
            tops = [*it.tops, *it.prompt_tops.values()]
            tokens.append((it.output, [ids for ids, _logprobs in tops], list(it.prompt_logprobs)))
            numbers += [
                *it.logprobs,
                *it.prompt_logprobs.values(),
                *(each for _, top in tops for each in top),
            ]
        return cls(tokens, numbers)


def check(found: list[Told], want: list[Told]) -> None:
    for mine, theirs in zip(found, want, strict=True):
        assert mine.tokens == theirs.tokens
        assert mine.numbers == pytest.approx(theirs.numbers, abs=1e-4)


def execute_of(engines: list[Engine]) -> Execute:
    return execute_on(engines[0]) if len(engines) == 1 else thread_ranks.execute_on_all(engines)


def played_in_pieces(engines: list[Engine]) -> list[Told]:
    """Some of a batch, in odd pieces and with preemptions."""
    some = [sequence for number, sequence in enumerate(batch()) if number % 3 == 1]
    return [Told.of(Driver(execute_of(engines), **SIZES).run(some, seed=3))]


def played(engines: list[Engine], adapter: Path | None = None) -> list[Told]:
    """A batch as it is, and in odd pieces with preemptions."""
    adapter_id = ""
    if adapter is not None:
        [adapter_id] = {engine.slots.adapters.load(adapter, "", "test").adapter_id for engine in engines}
    driver = Driver(execute_of(engines), **SIZES)
    return [Told.of(driver.run(batch(adapter_id), seed)) for seed in (None, 3)]


def with_shared_prefix(engines: list[Engine]) -> list[Told]:
    driver = Driver(execute_of(engines), **SIZES)
    donor = Sequence(prompts(9, seed=4)[0] * 9, 3)
    driver.run([donor])
    later = Sequence([*donor.prompt, 5, 6], 4)
    driver.share_prefix(donor, later)
    return [Told.of([donor, *driver.run([later])])]


def with_drafts(engines: list[Engine]) -> list[list[int]]:
    """The outputs with drafts: the next tokens are drafted from those before them."""

    def lose() -> None:
        for engine in engines:
            engine.clear()

    driver = DraftingDriver(execute_of(engines), lose, **SIZES)
    found = [Sequence([5, 6, 7] * 4, 9), Sequence([8, 9] * 5, 9, EVERYTHING["drawn"])]
    driver.play(found, random.Random(1))
    return [it.output[:9] for it in found]


def adapter_of_all_layers(folder: Path) -> Path:
    weights = adapter_folder.tensors()
    first = {name: matrix for name, matrix in weights.items() if ".layers.0." in name}
    for layer in range(3, NUM_LAYERS):
        weights |= {name.replace(".layers.0.", f".layers.{layer}."): it * 0.9 for name, it in first.items()}
    return adapter_folder.write(folder, weights)


def test_layers_are_divided_as_evenly_as_can_be() -> None:
    def ranges(total: int, count: int) -> list[list[int]]:
        return [list(Stage(number, count).layers(total)) for number in range(count)]

    assert ranges(5, 1) == [[0, 1, 2, 3, 4]]
    assert ranges(3, 2) == [[0, 1], [2]]
    assert ranges(5, 4) == [[0], [1, 2], [3], [4]]
    assert ranges(7, 4) == [[0, 1], [2, 3], [4, 5], [6]]
    for count in range(1, 9):
        for total in range(count, 40):
            found = ranges(total, count)
            assert [layer for each in found for layer in each] == list(range(total))
            assert {len(each) for each in found} <= {total // count, total // count + 1}


@pytest.mark.parametrize("num_stages", [2, 4])
def test_stages_choose_what_one_rank_does(
    num_stages: int, saved_model: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The last stage has the embedding, too.
    folder = saved_model(tie_word_embeddings=True, **RECORDED).folder
    adapter = adapter_of_all_layers(tmp_path / "adapter")
    alone = [make_engine(folder, is_poisoned=True, **SIZES)]
    with thread_ranks.engines(
        folder, num_stages, monkeypatch, num_stages=num_stages, is_poisoned=True, **SIZES
    ) as ranks:
        assert [len(rank.cache.layers) for rank in ranks] == [
            len(Stage(number, num_stages).layers(NUM_LAYERS)) for number in range(num_stages)
        ]
        check(played(ranks, adapter), played(alone, adapter))
        check(with_shared_prefix(ranks), with_shared_prefix(alone))
        assert with_drafts(ranks) == with_drafts(alone)
        assert all(rank.graphs is not None and rank.graphs.sizes for rank in ranks), "steps are recorded"


@pytest.mark.parametrize("kind", ["model", "heads"])
def test_the_first_stage_drafts_for_all(
    kind: str, saved_model: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved_model(tie_word_embeddings=True, **RECORDED).folder
    draft = folder if kind == "model" else medusa_heads(folder, tmp_path / "heads")
    options = {"draft_model_path": draft, "is_poisoned": True, **SIZES}
    alone = [make_engine(folder, **options)]
    with thread_ranks.engines(folder, 2, monkeypatch, num_stages=2, **options) as ranks:
        assert len({rank.description.limits for rank in ranks}) == 1
        check(played_in_pieces(ranks), played_in_pieces(alone))
        check(with_shared_prefix(ranks), with_shared_prefix(alone))
        assert with_drafts(ranks) == with_drafts(alone)


# States, states beside attention, windows, weights and a cache of few bits; each layer is a stage.
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "recurrent layers before one that attends": (CASES["qwen3_5_text"], {}),
    "no attention": (CASES["mamba2"], {}),
    "latents": (CASES["deepseek_v3"], {}),
    "window, few bits": (
        {"family": "mistral", "sliding_window": 6, "num_hidden_layers": 3},
        {"quantize": "int4", "kv_cache_dtype": "fp8"},
    ),
    "learned positions": (CASES["opt"], {}),
    "norms without weights": (CASES["nanochat"], {}),
    "layers with angles of their own": (
        {**CASES["granite_swa"], "num_hidden_layers": 3, "layer_rope_theta": [500, 0, 1e4]},
        {},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_layers_keep_is_kept_by_their_stage(
    kind: str, saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, options = KINDS[kind]
    folder, sizes = saved_model(**recipe).folder, {**SIZES, **options, "is_poisoned": True}
    want = played_in_pieces([make_engine(folder, **sizes)])
    with thread_ranks.engines(folder, 3, monkeypatch, num_stages=3, **sizes) as ranks:
        assert len({rank.description.limits for rank in ranks}) == 1
        assert len({rank.description.abilities for rank in ranks}) == 1
        assert (
            len({rank.description.quantization and rank.description.quantization[1] for rank in ranks}) == 1
        )
        check(played_in_pieces(ranks), want)


def test_stages_of_two_shards_choose_what_two_shards_do(
    saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved_model("qwen3_moe", **EXPERTS).folder
    with thread_ranks.engines(folder, 2, monkeypatch, expert_parallel=True, **SIZES) as ranks:
        want = played_in_pieces(ranks)
    with thread_ranks.engines(folder, 4, monkeypatch, num_stages=2, expert_parallel=True, **SIZES) as ranks:
        check(played_in_pieces(ranks), want)


@pytest.mark.parametrize("has_heads", [False, True])
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_stage_without_memory_fails_the_step_on_all(
    stage: int,
    has_heads: bool,
    saved_model: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {"draft_model_path": random_head(tmp_path / "heads")[0]} if has_heads else {}
    with thread_ranks.engines(saved_model().folder, 3, monkeypatch, num_stages=3, **options) as ranks:
        execute = thread_ranks.execute_on_all(ranks)
        fault = break_in(ranks[stage], "layers.0.attention")
        assert execute(FIRST).sampled_slots == [0]
        fault.is_due = True
        assert failed(execute(PROMPT)) == [(1, ErrorCode.OUT_OF_MEMORY)]
        assert execute(LATER).sampled_slots == [0, 2]


def test_what_cannot_be_divided_is_refused(saved_model: Callable[..., Any]) -> None:
    def refusal(num_stages: int, **options: Any) -> str:
        config = engine_config(saved_model().folder, **options)
        group = GroupConfig(0, num_stages, None, num_stages=num_stages)
        with pytest.raises(StartError) as refused:
            open_folders(replace(config, group=group))
        return str(refused.value)

    assert refusal(4).startswith("--pipeline-parallel-size 4 is more than the 3 layers of this model")
    borrowed = refusal(2, model_impl="transformers")
    assert "llama is computed by the code of transformers" in borrowed


def test_layers_that_read_those_of_another_stage_are_refused(saved_model: Callable[..., Any]) -> None:
    config = engine_config(saved_model(**CASES["gemma4_text"]).folder)
    group = GroupConfig(0, 2, None, num_stages=2)
    with pytest.raises(
        StartError, match=r"--pipeline-parallel-size 2: layers of gemma4_text read what another one"
    ):
        open_folders(replace(config, group=group))
