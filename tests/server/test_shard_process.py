"""One real shard process over its socket: what the router and the launcher see."""

import json
import os
import socket
import stat
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import oracle
import pytest
from grpc_health.v1 import health_pb2
from penstock_server.pb import engine_pb2 as pb
from shard_client import ENDPOINTS, Shard, environment, greedy, run_shard, running_shards
from tokenizers import Tokenizer

PROMPT = [5, 6, 7, 8, 9, 10, 11]
ADMIT = pb.Admit(slot=3, token_ids=PROMPT, prompt_len=7, block_ids=[5], sampling=greedy())


@pytest.fixture(scope="module")
def model(saved_model: Callable[..., Any]) -> Any:
    return saved_model()


@pytest.fixture(scope="module", params=ENDPOINTS)
def endpoint(request: pytest.FixtureRequest) -> str:
    return f"--endpoint={request.param}"


@pytest.fixture(scope="module")
def shard(model: Any, endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shard]:
    with running_shards(model.folder, tmp_path_factory.mktemp("sockets"), flags=[endpoint]) as shards:
        yield shards[0]


def test_describe_returns_what_was_chosen(shard: Shard) -> None:
    described = shard.describe()
    assert (described.model_type, described.dtype, described.device) == ("llama", "float32", "cpu")
    assert (described.vocab_size, list(described.eos_token_ids), described.max_sequence_len) == (
        301,
        [2],
        200,
    )
    assert (described.block_size, described.num_slots, described.max_step_tokens) == (16, 128, 2048)
    assert (described.rank, described.world_size) == (0, 1)
    assert described.num_blocks == 128 * 13  # a tiny model: every slot can be full
    assert set(described.abilities) == {"prompt_logprobs", "grammar", "adapters"}
    assert len(described.instance_id) == len(described.weights_version) == 32
    assert len(described.tokenizer_version) == 32


def test_plans_in_flight_feed_each_other_on_the_device(shard: Shard, model: Any) -> None:
    stream = shard.open()
    stream.send(admitted=[ADMIT], span_slots=[3], span_starts=[0], span_lens=[7])
    for position in (7, 8, 9):
        stream.send(span_slots=[3], span_starts=[position], span_lens=[1])
    outcomes = [stream.read() for _ in range(4)]
    tokens, logprobs = oracle.greedy(model.oracle, PROMPT, 4)
    assert [outcome.sampled_ids[0] for outcome in outcomes] == tokens
    assert [outcome.sampled_logprobs[0] for outcome in outcomes] == pytest.approx(logprobs, abs=1e-3)
    assert [outcome.step for outcome in outcomes] == [1, 2, 3, 4]
    assert outcomes[0].sampled_checksum == zlib.crc32(struct.pack("<II", 3, tokens[0]))
    assert outcomes[0].timings.forward_us > 0
    stream.close()


def test_prompt_scores_travel_with_the_most_likely_tokens_row_by_row(shard: Shard, model: Any) -> None:
    sampling = greedy(prompt_logprobs=True, num_top_logprobs=2)
    admit = pb.Admit(slot=3, token_ids=PROMPT, prompt_len=7, block_ids=[5], sampling=sampling)
    stream = shard.open(shard.describe().last_epoch + 1)
    (found,) = stream.ask(admitted=[admit], span_slots=[3], span_starts=[0], span_lens=[7]).prompt_logprobs
    assert (found.start, len(found.logprobs), len(found.top_ids)) == (1, 6, 12)
    expected = [oracle.next_logprobs(model.oracle, PROMPT[:position]).topk(2) for position in range(1, 7)]
    assert list(found.top_ids) == [int(token) for top in expected for token in top.indices]
    assert list(found.top_logprobs) == pytest.approx(
        [float(logprob) for top in expected for logprob in top.values], abs=1e-3
    )
    stream.close()


def test_a_newer_epoch_takes_over_and_finds_no_slots(shard: Shard) -> None:
    old = shard.open()
    assert old.ask(admitted=[ADMIT], span_slots=[3], span_starts=[0], span_lens=[7]).sampled_ids
    new = shard.open()
    outcome = new.ask(span_slots=[3], span_starts=[7], span_lens=[1])
    assert [(error.slot, error.code) for error in outcome.slot_errors] == [(3, pb.SlotError.CODE_INVALID)]
    with pytest.raises(grpc.RpcError) as ended:
        old.read()
    assert ended.value.code() == grpc.StatusCode.ABORTED
    stale = shard.open(old.epoch)
    stale.send()
    with pytest.raises(grpc.RpcError) as refused:
        stale.read()
    assert refused.value.code() == grpc.StatusCode.ABORTED
    assert shard.describe().last_epoch == new.epoch
    shard.open(new.epoch + 1).close()


@pytest.mark.parametrize(
    "fields",
    [
        {"step": 7},
        {"span_slots": [1], "span_starts": [0], "span_lens": []},
        {"appended_slots": [1], "appended_counts": [2], "appended_blocks": [1]},
        {"copied_from": [1], "copied_to": [10**6]},
        {"span_slots": [1], "span_starts": [0], "span_lens": [1], "snapshot_spans": [0], "snapshots": [0]},
    ],
)
def test_plans_that_make_no_sense_end_their_stream_only(shard: Shard, fields: dict[str, Any]) -> None:
    stream = shard.open(shard.describe().last_epoch + 1)
    stream.send(**fields)
    with pytest.raises(grpc.RpcError) as refused:
        stream.read()
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    again = shard.open()
    assert again.ask(admitted=[ADMIT], span_slots=[3], span_starts=[0], span_lens=[7]).sampled_slots == [3]
    again.call.cancel()


@pytest.mark.parametrize(
    ("encoded", "code"),
    [
        (b"no plan", grpc.StatusCode.INTERNAL),
        # Its numbers can be read, and the sequence that it admits cannot.
        (b"\x08\xff\x01\x10\x01\x22\x02\x08", grpc.StatusCode.INTERNAL),
        (bytes(65 * 2**20), grpc.StatusCode.RESOURCE_EXHAUSTED),
    ],
    ids=["no message", "broken inside", "too large"],
)
def test_what_is_no_plan_ends_its_stream_only(shard: Shard, encoded: bytes, code: grpc.StatusCode) -> None:
    stream = shard.open(shard.describe().last_epoch + 1)
    stream.send_bytes(encoded)
    with pytest.raises(grpc.RpcError) as refused:
        stream.read()
    assert refused.value.code() == code
    again = shard.open(max(stream.epoch, shard.describe().last_epoch) + 1)
    assert again.ask(admitted=[ADMIT], span_slots=[3], span_starts=[0], span_lens=[7]).sampled_slots == [3]
    again.close()


def test_calls_beside_the_steps_are_answered_or_refused_by_name(shard: Shard) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        shard.stub.LoadAdapter(pb.LoadAdapterRequest(path="/no/adapter"), timeout=30)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "/no/adapter" in str(refused.value.details())
    answer = shard.stub.UnloadAdapter(pb.UnloadAdapterRequest(adapter_id="x"), timeout=30)
    assert answer == pb.UnloadAdapterResponse()


def test_heartbeats_tell_the_last_step(shard: Shard) -> None:
    stream = shard.open(shard.describe().last_epoch + 1)
    stream.ask()
    stream.ask()
    beats = shard.stub.Watch(pb.WatchRequest(interval_ms=1), timeout=30)
    first, second = next(beats), next(beats)
    assert (first.epoch, first.finished_step, first.running_ms) == (stream.epoch, 2, 0)
    assert second.finished_step == 2
    beats.cancel()
    stream.close()


def test_health_names_the_service_and_nothing_else(shard: Shard) -> None:
    for name in ("", "penstock.engine.v1.Engine"):
        status = shard.health.Check(health_pb2.HealthCheckRequest(service=name), timeout=10).status
        assert status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as unknown:
        shard.health.Check(health_pb2.HealthCheckRequest(service="else"), timeout=10)
    assert unknown.value.code() == grpc.StatusCode.NOT_FOUND


def test_messages_far_beyond_the_usual_limit_pass(shard: Shard) -> None:
    stream = shard.open(shard.describe().last_epoch + 1)
    admit = pb.Admit(slot=1, token_ids=[300] * 4_000_000, prompt_len=1, sampling=greedy())
    assert "max_sequence_len 200" in stream.ask(admitted=[admit]).slot_errors[0].message
    stream.close()


def test_socket_is_private_and_cannot_be_taken_over(shard: Shard, model: Any) -> None:
    assert stat.S_IMODE(shard.socket.stat().st_mode) == 0o600
    second = run_shard("--model-path", model.folder, "--uds-path", shard.socket, "--device", "cpu")
    assert second.returncode == 1
    assert "another process listens on this socket" in second.stderr
    assert shard.describe().vocab_size == 301


def test_sigterm_ends_streams_removes_the_socket_and_exits_0(
    model: Any, endpoint: str, tmp_path: Path
) -> None:
    stale = tmp_path / "shard.sock"
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(stale))  # left behind by a process that was killed
    with Shard(model.folder, stale, endpoint, "--threads", 1, "--json-output") as shard:
        shard.wait_until_ready()
        stream = shard.open()
        stream.ask(admitted=[ADMIT], span_slots=[3], span_starts=[0], span_lens=[7])
        shard.process.terminate()
        with pytest.raises(grpc.RpcError) as ended:
            stream.read()
        assert ended.value.code() == grpc.StatusCode.UNAVAILABLE
        assert shard.process.wait(timeout=30) == 0
        assert not stale.exists()
        assert '"level": "INFO"' in shard.read_log()


def test_sigterm_ends_a_shard_whose_grammar_takes_long(model: Any, tmp_path: Path) -> None:
    """Nothing can interrupt the thread that builds it; it must not end in an abort or a traceback."""
    lists = [{"type": "array", "items": {"$ref": "#/$defs/any"}} for _ in range(400)]
    schema = json.dumps({"$defs": {"any": {"anyOf": lists}}, "$ref": "#/$defs/any"})
    bracket = Tokenizer.from_file(str(model.folder / "tokenizer.json")).token_to_id("[")
    assert bracket is not None
    admit = pb.Admit(
        slot=0,
        token_ids=[*PROMPT, *[bracket] * 40],
        prompt_len=len(PROMPT),
        block_ids=range(4),
        sampling=greedy(),
        grammar=pb.Grammar(kind=pb.Grammar.KIND_JSON_SCHEMA, text=schema),
    )
    with Shard(model.folder, tmp_path / "shard.sock") as shard:
        shard.wait_until_ready()
        # A chunk of the prompt samples nothing, so that its step does not wait for the matcher, which is being built.
        outcome = shard.open().ask(admitted=[admit], span_slots=[0], span_starts=[0], span_lens=[1])
        assert not outcome.sampled_slots
        assert not outcome.slot_errors
        shard.process.terminate()
        assert shard.process.wait(timeout=30) == 0
        log = shard.read_log()
    assert "stopped" in log
    assert "Traceback" not in log
    assert "terminate called" not in log


def test_shard_exits_when_its_parent_is_gone(model: Any, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    flags = ["--model-path", model.folder, "--uds-path", tmp_path / "s.sock", "--device", "cpu"]
    command = [sys.executable, "-m", "penstock_server", *map(str, flags), "--parent-pipe-fd", str(reader)]
    process = subprocess.Popen(command, env=environment(), pass_fds=[reader], stderr=subprocess.DEVNULL)
    os.close(reader)
    assert process.poll() is None
    os.close(writer)
    assert process.wait(timeout=30) == 1
