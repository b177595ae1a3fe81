"""Models whose layers keep states, through the whole server: prefixes are shared up to states that are kept, and a
killed shard loses nothing.
"""

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from e2e import faults
from e2e.launched import Launched
from e2e.models import greedy, make_model
from e2e.oracle import SLACK
from transformers import (
    FalconH1Config,
    FalconH1ForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
)

PROMPT = "a prompt that is longer than a block of the cache, and told again and again"
NUM_NEW = 60
FLAGS = ("--dtype=float32", "--poison-cache", "--max-batch-prefill-tokens=50")
# One model of each kind of recurrent layer.
KINDS: dict[str, dict[str, Any]] = {
    "delta rule": {
        "config_class": Qwen3_5TextConfig,
        "model_class": Qwen3_5ForCausalLM,
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 12,
        "linear_value_head_dim": 10,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "Mamba-2": {
        "config_class": FalconH1Config,
        "model_class": FalconH1ForCausalLM,
        "head_dim": 16,
        "mamba_d_ssm": 128,
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_n_groups": 2,
        "mamba_d_state": 12,
    },
    "short convolution": {
        "config_class": Lfm2Config,
        "model_class": Lfm2ForCausalLM,
        "layer_types": ["conv", "full_attention"],
    },
}
# Tokens of the prompt, and those of its blocks in which the last token is not.
PROMPT_LEN, CACHED = len(PROMPT), (len(PROMPT) - 1) // 16 * 16


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a model of a kind."""
    return cache(lambda kind: make_model(tmp_path_factory.mktemp("states"), **KINDS[kind]))


@pytest.fixture(scope="module")
def model(saved: Callable[[str], Path]) -> Path:
    return saved("delta rule")


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    tmp = tmp_path_factory.mktemp("run")
    with Launched(tmp, f"--model-id={model}", *FLAGS, faults.hold_flag(tmp)) as launched:
        yield launched.wait_until_serving()


def ask(server: Launched, **more: Any) -> dict[str, Any]:
    body = {"prompt": PROMPT, "max_tokens": NUM_NEW, "temperature": 0, **more}
    status, reply = server.post("/v1/completions", body)
    assert status == 200, reply
    return dict(reply)


def num_cached(reply: dict[str, Any]) -> int:
    return int((reply["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


def test_each_sequence_of_a_prompt_begins_with_its_state(server: Launched, model: Path) -> None:
    expected = greedy(model, PROMPT, NUM_NEW)[1]
    for more, cached in (({"n": 2}, 0), ({}, CACHED), ({"n": 1, "best_of": 2}, CACHED)):
        reply = ask(server, **more)
        assert [choice["text"] for choice in reply["choices"]] == [expected] * more.get("n", 1)
        assert num_cached(reply) == cached
    hits = json.loads(server.get("/stats")[1])["prefix_cache_hit_tokens_total"]
    assert hits == 4 * CACHED, "the second of two begins with the state of the first"
    assert "no tokens are drafted, and prefixes are shared up to states that are kept" in server.stderr


@pytest.mark.parametrize("num_shards", [1, 2])
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_prompt_told_again_is_not_computed_again(
    kind: str, num_shards: int, saved: Callable[[str], Path], tmp_path: Path
) -> None:
    model, more = saved(kind), " and one that goes on"
    with Launched(tmp_path, f"--model-id={model}", f"--num-shard={num_shards}", *FLAGS) as server:
        server.wait_until_serving()
        cached = []
        for prompt in (PROMPT, PROMPT, PROMPT + more, PROMPT[:40] + more, PROMPT[:40] + PROMPT):
            reply = ask(server, prompt=prompt, max_tokens=20)
            assert reply["choices"][0]["text"] == greedy(model, prompt, 20)[1]
            cached.append(num_cached(reply))
        # The last but one diverges within the prompt, and leaves a state there for the last.
        assert cached == [0, CACHED, CACHED, 0, 32]


def test_without_snapshots_nothing_is_cached(model: Path, tmp_path: Path) -> None:
    with Launched(tmp_path, f"--model-id={model}", "--max-snapshots=0", *FLAGS) as server:
        server.wait_until_serving()
        expected = greedy(model, PROMPT, 20)[1]
        for _ in range(2):
            reply = ask(server, max_tokens=20)
            assert (reply["choices"][0]["text"], num_cached(reply)) == (expected, 0)
    assert (
        "no tokens are drafted, and prefixes are not shared: layers of this model keep a state"
        in server.stderr
    )


@pytest.mark.parametrize("kind", list(KINDS))
def test_drafts_change_neither_answers_nor_states(
    kind: str, saved: Callable[[str], Path], tmp_path: Path
) -> None:
    model = saved(kind)
    drafts = ("--speculation=ngram", "--speculate=6", faults.hold_flag(tmp_path))
    with Launched(tmp_path, f"--model-id={model}", *drafts, *FLAGS) as server:
        server.wait_until_serving()
        assert "tokens are drafted, and prefixes are shared up to states that are kept" in server.stderr
        answer = greedy(model, PROMPT, NUM_NEW)[1]
        for more, cached in (({"n": 2}, 0), ({}, CACHED)):
            reply = ask(server, **more)
            assert [choice["text"] for choice in reply["choices"]] == [answer] * more.get("n", 1)
            assert num_cached(reply) == cached
        drawn = {"max_tokens": NUM_NEW, "temperature": 0.8, "seed": 4, "logit_bias": {"66": 60, "67": 60}}
        first, again = (ask(server, **drawn)["choices"][0]["text"] for _ in range(2))
        assert first == again
        lines = server.get("/metrics")[1].decode().splitlines()
        counts = dict(line.rsplit(" ", 1) for line in lines if line.startswith("tgi_speculation"))
        drafted, accepted = (
            float(counts[f"tgi_speculation_{name}_tokens"]) for name in ("drafted", "accepted")
        )
        assert 0 < accepted < drafted
        ranks = faults.shard(server, 0)
        body = {"inputs": PROMPT, "parameters": {"max_new_tokens": NUM_NEW}}
        with faults.held_load(server, [body] * 3) as load:
            faults.kill(ranks)
            faults.time_until(lambda: faults.is_gone(ranks), 1.0 * SLACK)
        assert [(record.text, record.error) for record in load.finish()] == [(answer, None)] * 3


def test_streams_go_on_when_the_shard_is_killed(server: Launched, model: Path) -> None:
    expected, ranks = greedy(model, PROMPT, NUM_NEW)[1], faults.shard(server, 0)
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": NUM_NEW}}
    with faults.held_load(server, [body] * 3) as load:
        faults.kill(ranks)
        faults.time_until(lambda: faults.is_gone(ranks), 1.0 * SLACK)
    assert [record.text for record in load.finish()] == [expected] * 3
    assert faults.restarts(server) == 1
