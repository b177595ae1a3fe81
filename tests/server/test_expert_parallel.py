"""Whole experts on each rank: the tokens of transformers, whatever the numbers of experts and ranks."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import thread_ranks
from driver import engine_config, make_engine
from family_models import CASES
from penstock_server.architectures.registry import FAMILIES
from penstock_server.base.errors import StartError
from penstock_server.engine.engine import Engine
from penstock_server.files.folders import open_folders
from penstock_server.network.layers.expert_share import experts_of
from penstock_server.network.layers.moe import Experts
from test_families import Expected, check, check_prefix, made_by

# Heads, shared experts and dense layers that 2, 3 and 4 ranks divide, and an expert's size that 3 do not.
RAGGED = {
    "num_attention_heads": 12, "num_key_value_heads": 12, "head_dim": None, "num_experts_per_tok": 2,
    "moe_intermediate_size": 44, "shared_expert_intermediate_size": 48, "mlp_only_layers": [1],
}  # fmt: skip
WITH_EXPERTS = [
    name
    for name, options in CASES.items()
    if (experts := FAMILIES[options["family"]].experts)
    and options.get("num_local_experts") != 0
    and (not experts.switch_key or options.get(experts.switch_key))
]
Made = Callable[..., Expected]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Makes the folder of a model and asks transformers, once."""
    made: dict[str, Expected] = {}

    def make(name: str, **options: Any) -> Expected:
        if name not in made:
            options = {**(CASES.get(name) or {"family": "qwen2_moe", **RAGGED}), **options}
            made[name] = made_by(tmp_path_factory.mktemp("model"), options.pop("family"), options)
        return made[name]

    return make


def experts_in(rank: Engine) -> list[Experts]:
    """The experts of each sparse layer."""
    model: Any = rank.model
    return [module for module in model.modules() if isinstance(module, Experts)]


@pytest.mark.parametrize("name", WITH_EXPERTS)
def test_two_ranks_with_whole_experts_equal_transformers(
    name: str, expected: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = expected(name)
    with thread_ranks.engines(
        want.folder, 2, monkeypatch, expert_parallel=True, max_sequence_len=100
    ) as ranks:
        for rank in ranks:
            assert rank.description.expert_parallel
            rank.cache.spoil()
        check(thread_ranks.execute_on_all(ranks), want, seed=2)


# With 3 experts on 4 ranks, the first rank has none.
@pytest.mark.parametrize(("num_experts", "size"), [(5, 2), (5, 3), (5, 4), (3, 4)])
def test_experts_that_do_not_divide_equal_transformers(
    num_experts: int, size: int, expected: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = expected(f"of {num_experts}", num_experts=num_experts)
    with thread_ranks.engines(
        want.folder, size, monkeypatch, expert_parallel=True, max_sequence_len=100
    ) as ranks:
        counts = [{len(experts.gate_up) for experts in experts_in(rank)} for rank in ranks]
        assert counts == [{len(experts_of(num_experts, rank, size))} for rank in range(size)]
        for seed in (None, 1):
            for rank in ranks:
                rank.clear()
            check(thread_ranks.execute_on_all(ranks), want, seed)
        for rank in ranks:
            rank.clear()
        check_prefix(thread_ranks.execute_on_all(ranks), want)


def test_every_expert_is_on_one_rank() -> None:
    for count in range(1, 12):
        for size in range(1, 15):
            ranges = [experts_of(count, rank, size) for rank in range(size)]
            assert [expert for mine in ranges for expert in mine] == list(range(count))
            assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


@pytest.mark.parametrize("size", [2, 3])
def test_whole_experts_are_chosen_where_slices_would_not_be_of_one_size(
    size: int, expected: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    want = expected("of 5", num_experts=5)
    with thread_ranks.engines(want.folder, size, monkeypatch, max_sequence_len=100) as ranks:
        assert [rank.description.expert_parallel for rank in ranks] == [size == 3] * size
        check(thread_ranks.execute_on_all(ranks), want, seed=None)
    lines = {message for message in caplog.messages if message.startswith("experts: ")}
    if size == 2:
        assert lines == {"experts: of each of 5, 22 of 44 are here"}
    else:
        why = "are here, whole, because 3 does not divide their size"
        assert lines == {f"experts: {which} of 5 {why}" for which in ("0 to 0", "1 to 2", "3 to 4")}


def test_slices_are_refused_where_they_would_not_be_of_one_size(
    expected: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = expected("of 5", num_experts=5)
    with (
        pytest.raises(StartError, match="size of an expert 44 cannot be divided among 3 shards"),
        thread_ranks.engines(want.folder, 3, monkeypatch, expert_parallel=False),
    ):
        pass


def test_a_rank_that_is_alone_has_all_experts_either_way(expected: Made, tmp_path: Path) -> None:
    assert not make_engine(expected("qwen3_moe").folder, max_sequence_len=100).description.expert_parallel


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("llama", {}, "--expert-parallel true: llama has no experts; leave it out"),
        (
            "mixtral",
            {"model_impl": "transformers"},
            "--expert-parallel true is for models with a row here, and mixtral is computed by the code of "
            "transformers; leave it out",
        ),
    ],
)
def test_models_without_experts_of_ours_are_refused(
    family: str, options: dict[str, Any], message: str, saved_model: Callable[..., Any]
) -> None:
    folder = saved_model(family=family, num_local_experts=4).folder
    config = engine_config(folder, **options)
    config = thread_ranks.with_group(config, 0, 2, folder, expert_parallel=True)
    with pytest.raises(StartError) as refused:
        open_folders(config)
    assert str(refused.value) == message
