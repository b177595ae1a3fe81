"""A model whose layers keep states, through the whole server: no prefix is cached, and a killed shard loses nothing."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e import faults
from e2e.launched import Launched
from e2e.models import greedy, make_model
from e2e.oracle import SLACK
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

PROMPT = "a prompt that is longer than a block of the cache, and told again and again"
NUM_NEW = 60
SIZES: dict[str, Any] = {
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 10,
    "layer_types": ["linear_attention", "full_attention"],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("states")
    return make_model(folder, config_class=Qwen3_5TextConfig, model_class=Qwen3_5ForCausalLM, **SIZES)


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    tmp = tmp_path_factory.mktemp("run")
    flags = (f"--model-id={model}", "--dtype=float32", "--poison-cache", "--max-batch-prefill-tokens=50")
    with Launched(tmp, *flags, faults.hold_flag(tmp)) as launched:
        yield launched.wait_until_serving()


def ask(server: Launched, **more: Any) -> dict[str, Any]:
    body = {"prompt": PROMPT, "max_tokens": NUM_NEW, "temperature": 0, **more}
    status, reply = server.post("/v1/completions", body)
    assert status == 200, reply
    return dict(reply)


def test_nothing_is_cached_and_each_sequence_is_computed_by_itself(server: Launched, model: Path) -> None:
    expected = greedy(model, PROMPT, NUM_NEW)[1]
    for more in ({}, {"n": 2}, {"n": 1, "best_of": 2}):
        reply = ask(server, **more)
        assert [choice["text"] for choice in reply["choices"]] == [expected] * more.get("n", 1)
        assert not (reply["usage"].get("prompt_tokens_details") or {}).get("cached_tokens")
    assert json.loads(server.get("/stats")[1])["prefix_cache_hit_tokens_total"] == 0
    assert "prefixes are not cached and no tokens drafted: layers of this model keep a state" in server.stderr


def test_streams_go_on_when_the_shard_is_killed(server: Launched, model: Path) -> None:
    expected, ranks = greedy(model, PROMPT, NUM_NEW)[1], faults.shard(server, 0)
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": NUM_NEW}}
    with faults.held_load(server, [body] * 3) as load:
        faults.kill(ranks)
        faults.time_until(lambda: faults.is_gone(ranks), 1.0 * SLACK)
    assert [record.text for record in load.finish()] == [expected] * 3
    assert faults.restarts(server) == 1
