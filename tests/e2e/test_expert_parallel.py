"""Shards with whole experts, in the whole system: the answers of one shard, with drafts and grammars."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from e2e.conftest import Launch
from e2e.hosts import Host
from e2e.launched import Launched
from e2e.models import make_model
from e2e.test_nodes import Cluster
from e2e.test_nodes import hosts as hosts
from e2e.test_speculation import BODIES, complete
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five experts: two for one shard, three for the other."""
    sizes: dict[str, Any] = {
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 36,
        "head_dim": 16,
    }
    kinds: dict[str, Any] = {"config_class": Qwen3MoeConfig, "model_class": Qwen3MoeForCausalLM}
    return make_model(tmp_path_factory.mktemp("experts"), norm_topk_prob=True, **kinds, **sizes)


@pytest.fixture(scope="module")
def alone(experts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    with Launched(tmp_path_factory.mktemp("run"), f"--model-id={experts}", "--dtype=float32") as launched:
        yield launched.wait_until_serving()


def is_expert_parallel(server: Launched) -> bool:
    told: bool = json.loads(server.get("/info")[1])["expert_parallel"]
    return told


def test_two_shards_with_whole_experts_answer_as_one(alone: Launched, experts: Path, launch: Launch) -> None:
    flags = ("--num-shard=2", "--enable-expert-parallel", "--speculation=ngram", "--poison-cache")
    server = launch(f"--model-id={experts}", "--dtype=float32", *flags).wait_until_serving()
    assert (is_expert_parallel(alone), is_expert_parallel(server)) == (False, True)
    assert "experts: 2 to 4 of 5 are here, whole" in server.stderr
    for body in [*BODIES, BODIES[0]]:
        assert complete(server, body)[0] == complete(alone, body)[0]


def test_two_machines_with_whole_experts_answer_as_one(
    alone: Launched, experts: Path, hosts: list[Host], tmp_path: Path
) -> None:
    with closing(Cluster(hosts, tmp_path, experts, "--expert-parallel", "--speculation=ngram")) as cluster:
        assert is_expert_parallel(cluster.server)
        for node in cluster.nodes:
            assert "of 5 are here, whole" in node.stderr
        for body in [*BODIES, BODIES[0]]:
            assert complete(cluster.server, body)[0] == complete(alone, body)[0]


def test_what_has_no_experts_to_divide_is_refused_in_one_line(model: Path, launch: Launch) -> None:
    server = launch(f"--model-id={model}", "--num-shard=2", "--expert-parallel")
    code, stderr = server.end()
    assert code == 2
    assert "--expert-parallel true: llama has no experts; leave it out" in stderr
