"""Attention backends can be chosen by name; an unavailable one is reported before weights are read."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any, get_args

import pytest
import thread_ranks
import torch
from driver import Driver, Sequence, execute_on, make_engine
from penstock_kernels import backends
from penstock_kernels.native.library import library
from penstock_server.architectures.spec import KvHeads
from penstock_server.base import config
from penstock_server.base.errors import StartError


def test_the_command_line_accepts_all_names() -> None:
    assert get_args(config.AttentionBackend) == backends.NAMES
    command = [sys.executable, "-m", "penstock_server", "--help"]
    help_text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert all(name in help_text for name in backends.NAMES)


def test_every_one_that_a_cpu_has_gives_the_same_tokens(saved_model: Callable[..., Any]) -> None:
    folder = saved_model("llama", head_dim=64).folder
    outputs, names = [], ["auto", "reference", *(["native"] if library() else [])]
    for name in names:
        engine = make_engine(folder, attention_backend=name)
        expected = names[-1] if name == "auto" else name
        assert engine.description.attention_backend == expected
        sequences = [Sequence([5, 6, 7][: 1 + number], 8) for number in range(3)]
        outputs.append([one.output for one in Driver(execute_on(engine)).run(sequences, seed=1)])
    assert outputs[1:] == outputs[:-1]


@pytest.mark.parametrize(
    ("name", "family", "options", "reason"),
    [
        ("triton", "llama", {}, "its kernels need a CUDA device, this one is cpu"),
        ("flashinfer", "llama", {"head_dim": 64}, "it needs a CUDA device, this one is cpu"),
        ("flashinfer", "llama", {}, "its heads have 64, 128, 256 numbers, this model's 18"),
        ("varlen", "gemma2", {"head_dim": 16}, "it has no soft cap of scores, which this model needs"),
        ("native", "llama", {"kv_cache_dtype": "fp8"}, "with a cache of float8_e4m3fn"),
        ("flashinfer", "biogpt", {"hidden_size": 64, "num_key_value_heads": None}, "use auto or reference"),
    ],
)
def test_what_cannot_be_had_is_refused_before_weights_are_read(
    saved_model: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    family: str,
    options: dict[str, Any],
    reason: str,
) -> None:
    made = {key: value for key, value in options.items() if key != "kv_cache_dtype"}
    kept = {key: value for key, value in options.items() if key == "kv_cache_dtype"}
    folder = saved_model(family, **made).folder
    monkeypatch.setattr(
        "penstock_server.load.read_model.load_weights", lambda *_: pytest.fail("weights were read")
    )
    with pytest.raises(StartError, match=f"--attention-backend {name}: .*{reason}"):
        make_engine(folder, attention_backend=name, **kept)


def test_a_group_shares_the_heads_that_are_checked(
    saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    demands: list[backends.Demand] = []

    def choose(_name: str, demand: backends.Demand) -> backends.Backend:
        demands.append(demand)
        return backends.Backend("native")

    monkeypatch.setattr("penstock_server.load.attention_backend.choose", choose)
    with thread_ranks.engines(
        saved_model("llama").folder, 2, monkeypatch, attention_backend="native"
    ) as ranks:
        assert [rank.description.attention_backend for rank in ranks] == ["native", "native"]
        heads = set(ranks[0].model.cache_shape.heads)
    assert {KvHeads(demand.num_kv_heads, demand.head_dim) for demand in demands} == heads
    assert {demand.dtype for demand in demands} == {torch.float32}
