"""Groups of real processes: the same tokens as one process, the same choices on every rank."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import oracle
import pytest
from driver import Driver, Sequence
from penstock_server.engine.plan import Grammar
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.pb import engine_pb2 as pb
from shard_client import DEADLINE_S, ENDPOINTS, Shard, execute_on_shards, greedy, running_shards
from test_parity import prompts

ADMIT = pb.Admit(slot=3, token_ids=[5, 6, 7], prompt_len=3, block_ids=[5], sampling=greedy())


# Groups of processes, each of which imports torch: slow on a busy machine.
pytestmark = pytest.mark.timeout(400)


EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 44, "norm_topk_prob": True}


@pytest.mark.parametrize(
    ("world_size", "options", "flags"),
    [
        (2, {"family": "qwen3", "tie_word_embeddings": True}, []),
        (2, {"family": "qwen2"}, []),
        (4, {"family": "llama", "attention_bias": True, "mlp_bias": True}, []),
        (2, {"family": "qwen3_moe", **EXPERTS}, ["--expert-parallel=true"]),
    ],
)
def test_ranks_together_equal_transformers(
    saved_model: Callable[..., Any],
    tmp_path: Path,
    world_size: int,
    options: dict[str, Any],
    flags: list[str],
) -> None:
    model = saved_model(**options)
    with running_shards(model.folder, tmp_path, world_size, flags) as shards:
        assert [shard.describe().expert_parallel for shard in shards] == [bool(flags)] * world_size
        assert len({shard.describe().num_blocks for shard in shards}) == 1
        sequences = [Sequence(prompt, 5, SamplingParams(prompt_logprobs=True)) for prompt in prompts(4)]
        sequences.append(Sequence([5, 6, 7], 5, SamplingParams(), Grammar("regex", "[0-9]+")))
        drawn = [
            Sequence(prompts(4)[1], 5, SamplingParams(temperature=1.0, seed=5, top_p=0.9)) for _ in range(2)
        ]
        Driver(execute_on_shards(shards), block_size=16).run([*sequences, *drawn], seed=1)
        for sequence in sequences[:4]:
            tokens, logprobs = oracle.greedy(model.oracle, sequence.prompt, 5)
            assert sequence.output == tokens
            assert sequence.logprobs == pytest.approx(logprobs, abs=1e-3)
            expected = oracle.prompt_logprobs(model.oracle, sequence.prompt)
            assert list(sequence.prompt_logprobs.values()) == pytest.approx(expected, abs=1e-3)
        assert not sequences[4].errors
        assert drawn[0].output == drawn[1].output
        assert [shard.stop() for shard in shards] == [0] * world_size


@pytest.fixture(params=ENDPOINTS)
def pair(request: pytest.FixtureRequest, saved_model: Callable[..., Any], tmp_path: Path) -> Any:
    with running_shards(saved_model().folder, tmp_path, 2, [f"--endpoint={request.param}"]) as shards:
        yield shards


def ask_both(shards: list[Shard], epoch: int, **fields: Any) -> list[list[int]]:
    streams = [shard.open(epoch) for shard in shards]
    for stream in streams:
        stream.send(**fields)
    return [list(stream.read().sampled_slots) for stream in streams]


def test_a_router_that_dies_while_it_sends_leaves_the_group_usable(pair: list[Shard]) -> None:
    span = {"span_slots": [3], "span_starts": [0], "span_lens": [3]}
    half = pair[0].open(1)
    half.send(admitted=[ADMIT], **span)  # the other rank never gets this plan
    beats = pair[0].stub.Watch(pb.WatchRequest(interval_ms=1), timeout=DEADLINE_S)
    # It is at the plan, and waits for the other.
    assert any(beat.running_ms for beat in beats)
    beats.cancel()
    half.call.cancel()
    assert ask_both(pair, 2, admitted=[ADMIT], **span) == [[3], []]


def test_a_rank_that_is_killed_takes_its_group_along(pair: list[Shard]) -> None:
    streams = [shard.open(1) for shard in pair]
    pair[1].process.send_signal(signal.SIGKILL)
    pair[1].process.wait(timeout=30)
    streams[0].send(admitted=[ADMIT], span_slots=[3], span_starts=[0], span_lens=[3])
    with pytest.raises(grpc.RpcError) as ended:
        streams[0].read()
    assert ended.value.code() == grpc.StatusCode.UNAVAILABLE
    assert pair[0].process.wait(timeout=30) == 1
    assert "another rank is gone" in pair[0].read_log()
