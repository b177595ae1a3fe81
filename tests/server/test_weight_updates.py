"""Weights of another folder in the place of those in use: what shard processes compute then, and what they refuse."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from penstock_server.pb import engine_pb2 as pb
from shard_client import DEADLINE_S, ENDPOINTS, Shard, running_shards
from test_sleep import ask, code_of, generate, resident_mb, sleep, wake_up
from updated_weights import changed, cut_off, trained

Folders = dict[str, Path]


@pytest.fixture(scope="module")
def folders(saved_model: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """The model and two that were trained further."""
    first, tmp = saved_model().folder, tmp_path_factory.mktemp("weights")
    return {"first": first, **{name: trained(first, tmp / name, seed) for seed, name in enumerate("ab")}}


@pytest.fixture(scope="module")
def fresh(folders: Folders, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """The outputs of shards that were started with each folder."""
    expected = {}
    for name, folder in folders.items():
        with running_shards(folder, tmp_path_factory.mktemp("fresh"), 1) as shards:
            expected[name] = generate(shards)
    assert len(set(map(tuple, expected.values()))) == len(folders), "the weights differ"
    return expected


@pytest.fixture(scope="module", params=ENDPOINTS)
def shards(
    request: pytest.FixtureRequest, folders: Folders, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Shard]]:
    flags = [f"--endpoint={request.param}"]
    with running_shards(folders["first"], tmp_path_factory.mktemp("sockets"), 2, flags) as shards:
        yield shards


@pytest.fixture(autouse=True)
def _as_at_the_start(request: pytest.FixtureRequest) -> None:
    if "shards" in request.fixturenames:
        shards = request.getfixturevalue("shards")
        if any(shard.describe().weights_label for shard in shards):
            ask(shards, "ReplaceWeights", pb.ReplaceWeightsRequest())


def replace(shards: list[Shard], folder: Path, label: str) -> None:
    found = ask(shards, "CheckWeights", pb.CheckWeightsRequest(path=str(folder)))
    assert found[0] == found[-1]
    request = pb.ReplaceWeightsRequest(
        path=str(folder), weights_version=found[0].weights_version, label=label
    )
    ask(shards, "ReplaceWeights", request)


def refused(shards: list[Shard], method: str, message: Any) -> set[tuple[grpc.StatusCode, str]]:
    calls = [getattr(shard.stub, method).future(message, timeout=DEADLINE_S) for shard in shards]
    return {code_of(call.result) for call in calls}


def test_shards_compute_what_a_fresh_start_with_the_folder_computes(
    shards: list[Shard], folders: Folders, fresh: dict[str, list[int]]
) -> None:
    before, memory_mb = shards[0].describe(), resident_mb(shards[0])
    for number, name in enumerate(["a", "b", "first", "a"]):
        replace(shards, folders[name], f"{number}-{name}")
        assert [shard.describe().weights_label for shard in shards] == [f"{number}-{name}"] * 2
        assert generate(shards) == fresh[name]
    assert resident_mb(shards[0]) < memory_mb + 50
    ask(shards, "ReplaceWeights", pb.ReplaceWeightsRequest())
    assert generate(shards) == fresh["first"]
    after = shards[0].describe()
    after.last_epoch = before.last_epoch
    assert after == before


def test_sleep_and_wake_keep_them_and_a_shard_that_sleeps_wakes_up_with_others(
    shards: list[Shard], folders: Folders, fresh: dict[str, list[int]]
) -> None:
    replace(shards, folders["a"], "1-a")
    for level in (1, 2):
        sleep(shards, level)
        wake_up(shards)
        assert generate(shards) == fresh["a"]
    for level in (1, 2):
        sleep(shards, level)
        replace(shards, folders["b"], "2-b")
        described = shards[1].describe()
        assert (described.sleep_level, described.weights_label) == (0, "2-b")
        assert generate(shards) == fresh["b"]


def test_a_stream_that_is_open_ends(shards: list[Shard], folders: Folders) -> None:
    epoch = 1 + max(shard.describe().last_epoch for shard in shards)
    streams = [shard.open(epoch) for shard in shards]
    for stream in streams:
        stream.send()
    for stream in streams:
        assert stream.read().step == 1
    replace(shards, folders["a"], "1-a")
    for stream in streams:
        assert code_of(stream.read)[0] == grpc.StatusCode.FAILED_PRECONDITION


NAME = "model.layers.1.mlp.up_proj.weight"
WRONG: dict[str, tuple[Callable[[dict[str, torch.Tensor]], object], str]] = {
    "missing": (lambda it: it.pop(NAME), f"tensor {NAME} is in no file, and the weights in use have it"),
    "shape": (
        lambda it: it.update({NAME: torch.zeros(3, 5)}),
        f"tensor {NAME} has shape [3, 5], and [132, 72] in the weights in use",
    ),
    "dtype": (
        lambda it: it.update({NAME: it[NAME].to(torch.bfloat16)}),
        f"tensor {NAME} is BF16, and F32 in the weights in use",
    ),
    "more": (lambda it: it.update(more=torch.zeros(2)), "tensor more is not in the weights in use"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_other_tensors_are_refused_by_name(
    shards: list[Shard], folders: Folders, tmp_path: Path, fresh: dict[str, list[int]], wrong: str
) -> None:
    change, message = WRONG[wrong]
    folder = changed(folders["a"], tmp_path / wrong, change)
    [(code, reason)] = refused(shards, "CheckWeights", pb.CheckWeightsRequest(path=str(folder)))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert message in reason
    assert generate(shards) == fresh["first"]


def with_config(folder: Path, target: Path, **fields: object) -> None:
    config = shutil.copytree(folder, target) / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **fields}))


def test_other_models_and_broken_folders_are_refused(
    shards: list[Shard], folders: Folders, tmp_path: Path, fresh: dict[str, list[int]]
) -> None:
    for name, key, value in [("eps", "rms_norm_eps", 1e-3), ("layers", "num_hidden_layers", 2)]:
        with_config(folders["a"], tmp_path / name, **{key: value})
    with_config(folders["a"], tmp_path / "type", model_type="qwen2")
    shutil.copytree(folders["a"], tmp_path / "json")
    (tmp_path / "json" / "config.json").write_text("[")
    cut_off(folders["a"], tmp_path / "cut")
    (tmp_path / "empty").mkdir()
    for file in ("config.json", "model.safetensors"):
        pipe = shutil.copytree(folders["a"], tmp_path / f"{file} as a pipe") / file
        pipe.unlink()
        os.mkfifo(pipe)
    for name, message in {
        "layers": "config.json: layers is ",
        "eps": "config.json: norm is ",
        "type": "config.json: model_type is qwen2, and llama of the weights in use",
        "json": "not valid JSON",
        "cut": "truncated inside tensor",
        "config.json as a pipe": "config.json: it is not a regular file",
        "model.safetensors as a pipe": "model.safetensors: it is not a regular file",
        "empty": "config.json",
        "none": "no such folder",
    }.items():
        request = pb.CheckWeightsRequest(path=str(tmp_path / name))
        [(code, reason)] = refused(shards, "CheckWeights", request)
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert message in reason, reason
    assert generate(shards) == fresh["first"]


def test_where_a_rank_cannot_read_them_all_have_those_from_before(
    shards: list[Shard], folders: Folders, tmp_path: Path, fresh: dict[str, list[int]]
) -> None:
    replace(shards, folders["a"], "1-a")

    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        # Rows of the second rank.
        tensors[NAME][-1, 0] = torch.nan

    spoiled = changed(folders["b"], tmp_path / "spoiled", spoil)
    request = pb.ReplaceWeightsRequest(path=str(spoiled), label="2-spoiled")
    answers = refused(shards, "ReplaceWeights", request)
    assert {code for code, _ in answers} == {grpc.StatusCode.FAILED_PRECONDITION}
    reasons = sorted(reason for _, reason in answers)
    assert reasons[0].endswith("holds numbers that are not finite; download it again")
    assert reasons[1:] == ["another rank cannot read them"]
    assert [shard.describe().weights_label for shard in shards] == ["1-a"] * 2
    assert generate(shards) == fresh["a"]


def test_files_that_changed_since_they_were_compared_are_not_used(
    shards: list[Shard], folders: Folders, tmp_path: Path, fresh: dict[str, list[int]]
) -> None:
    folder = shutil.copytree(folders["a"], tmp_path / "latest")
    [found, _] = ask(shards, "CheckWeights", pb.CheckWeightsRequest(path=str(folder)))
    shutil.copy(folders["b"] / "model.safetensors", folder / "model.safetensors")
    version = found.weights_version
    request = pb.ReplaceWeightsRequest(path=str(folder), weights_version=version, label="1-a")
    [(code, reason)] = refused(shards, "ReplaceWeights", request)
    assert (code, "are others" in reason) == (grpc.StatusCode.FAILED_PRECONDITION, True)
    assert generate(shards) == fresh["first"]


def test_what_has_no_tensors_to_compare_is_refused(folders: Folders, tmp_path: Path) -> None:
    with running_shards(folders["first"], tmp_path, 1, ["--load-format=dummy"]) as shards:
        request = pb.CheckWeightsRequest(path=str(folders["a"]))
        [(code, reason)] = refused(shards, "CheckWeights", request)
    assert (code, "--load-format dummy" in reason) == (grpc.StatusCode.INVALID_ARGUMENT, True)
