"""Sleep and wake of real shard processes: what memory they have, what they compute, and what they refuse meanwhile."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import oracle
import pytest
from adapter_folder import tensors, write
from penstock_server.pb import engine_pb2 as pb
from shard_client import DEADLINE_S, ENDPOINTS, Shard, Stream, greedy, running_shards

PROMPT = [5, 6, 7, 8, 9, 10, 11]
# All of a poisoned cache is written, so that the system has given the memory for it.
FLAGS = ("--poison-cache", "--num-blocks", 8_000)


@pytest.fixture(scope="module", params=ENDPOINTS)
def shards(
    request: pytest.FixtureRequest, saved_model: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Shard]]:
    folder = tmp_path_factory.mktemp("sockets")
    flags = [*FLAGS, f"--endpoint={request.param}"]
    with running_shards(saved_model().folder, folder, 2, flags) as shards:
        yield shards


def ask(shards: list[Shard], method: str, message: Any) -> list[Any]:
    """Calls the method on all ranks at the same time, as the router does."""
    calls = [getattr(shard.stub, method).future(message, timeout=DEADLINE_S) for shard in shards]
    return [call.result() for call in calls]


def sleep(shards: list[Shard], level: int) -> None:
    ask(shards, "Sleep", pb.SleepRequest(level=level))


def wake_up(shards: list[Shard]) -> None:
    ask(shards, "WakeUp", pb.WakeUpRequest())


def opened(shards: list[Shard]) -> list[Stream]:
    """A new stream to each rank."""
    epoch = 1 + max(shard.describe().last_epoch for shard in shards)
    return [shard.open(epoch) for shard in shards]


def generate(shards: list[Shard], count: int = 6) -> list[int]:
    admit = pb.Admit(slot=3, token_ids=PROMPT, prompt_len=7, block_ids=[5], sampling=greedy())
    streams = opened(shards)
    for stream in streams:
        stream.send(admitted=[admit], span_slots=[3], span_starts=[0], span_lens=[7])
        for position in range(7, 6 + count):
            stream.send(span_slots=[3], span_starts=[position], span_lens=[1])
    outcomes = [[stream.read() for _ in range(count)] for stream in streams]
    for stream in streams:
        stream.close()
    return [outcome.sampled_ids[0] for outcome in outcomes[0]]


def resident_mb(shard: Shard) -> float:
    status = Path(f"/proc/{shard.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def code_of(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as refused:
        call()
    return refused.value.code(), refused.value.details()


@pytest.mark.parametrize("level", [1, 2])
def test_a_shard_gives_its_memory_back_and_computes_the_same_tokens_afterwards(
    shards: list[Shard], saved_model: Callable[..., Any], level: int
) -> None:
    expected, _ = oracle.greedy(saved_model().oracle, PROMPT, 6)
    assert generate(shards) == expected
    before = shards[0].describe()
    pool_mb = 8_001 * 16 * 2 * _position_bytes(before) / 2**20
    awake_mb = resident_mb(shards[0])
    for _ in range(2):
        sleep(shards, level)
        asleep = shards[0].describe()
        assert asleep.sleep_level == level
        assert resident_mb(shards[0]) < awake_mb - 0.9 * pool_mb
        wake_up(shards)
        assert generate(shards) == expected
        assert abs(resident_mb(shards[0]) - awake_mb) < 0.5 * pool_mb
    after = shards[0].describe()
    after.last_epoch = before.last_epoch
    # `awake_bytes` also counts what steps have recorded since the start.
    after.awake_bytes.CopyFrom(before.awake_bytes)
    assert after == before


def test_what_a_shard_has_awake_beyond_its_sleep_is_told_awake_and_asleep(
    shards: list[Shard], tmp_path: Path
) -> None:
    wake_up(shards)
    described = shards[0].describe()
    pool = 8_001 * 16 * 2 * _position_bytes(described)
    cache_only, everything = described.awake_bytes.level_1, described.awake_bytes.level_2
    # Beside it are rows, and the results of recorded steps.
    assert pool < cache_only < pool + 2**20
    # The weights of the tiny model in 32 bits.
    assert 10_000 < everything - cache_only < 2**20
    adapter = pb.LoadAdapterRequest(path=str(write(tmp_path / "adapter", tensors())))
    ask(shards, "LoadAdapter", adapter)
    sleep(shards, 1)
    with_adapter = shards[0].describe().awake_bytes
    assert cache_only < with_adapter.level_1
    assert with_adapter.level_2 - with_adapter.level_1 == everything - cache_only
    wake_up(shards)
    sleep(shards, 2)
    without = shards[0].describe().awake_bytes
    assert without.level_1 < with_adapter.level_1
    wake_up(shards)


def test_what_is_told_counts_no_sequence_that_the_sleep_has_interrupted(shards: list[Shard]) -> None:
    wake_up(shards)
    generate(shards)
    sleep(shards, 1)
    at_rest = shards[0].describe().awake_bytes
    wake_up(shards)
    admit = pb.Admit(slot=3, token_ids=PROMPT, prompt_len=7, block_ids=[5], sampling=greedy())
    streams = opened(shards)
    for stream in streams:
        stream.send(admitted=[admit], span_slots=[3], span_starts=[0], span_lens=[7])
        stream.send(span_slots=[3], span_starts=[7], span_lens=[1])
    for stream in streams:
        assert [stream.read().step for _ in range(2)] == [1, 2]
    sleep(shards, 1)
    assert shards[0].describe().awake_bytes == at_rest
    wake_up(shards)


def _position_bytes(described: pb.DescribeResponse) -> int:
    """The bytes of keys, or of values, of all layers of the tiny model on one of two ranks."""
    assert described.dtype == "float32"
    return 3 * 2 * 18 * 4


def test_what_sleeps_computes_nothing_and_loads_nothing(shards: list[Shard], tmp_path: Path) -> None:
    first, streams = shards[0], opened(shards)
    for stream in streams:
        stream.send()
    for stream in streams:
        assert stream.read().step == 1
    sleep(shards, 2)
    for stream in streams:
        assert code_of(stream.read) == (grpc.StatusCode.FAILED_PRECONDITION, "the shard goes to sleep")
    for late in opened(shards):
        assert code_of(late.ask)[0] == grpc.StatusCode.FAILED_PRECONDITION
    folder = write(tmp_path / "adapter", tensors())
    load = pb.LoadAdapterRequest(path=str(folder))
    code, reason = code_of(lambda: first.stub.LoadAdapter(load, timeout=DEADLINE_S))
    assert (code, "sleeps" in reason) == (grpc.StatusCode.FAILED_PRECONDITION, True)
    sleep(shards, 1)
    assert first.describe().sleep_level == 2, "it stays at the deeper level"
    beat = next(first.stub.Watch(pb.WatchRequest(interval_ms=50), timeout=DEADLINE_S))
    assert beat.running_ms == 0
    wake_up(shards)
    wake_up(shards)
    assert first.describe().sleep_level == 0
    assert generate(shards)


@pytest.mark.parametrize("level", [0, 3])
def test_there_are_two_levels(shards: list[Shard], level: int) -> None:
    call = shards[0].stub.Sleep
    code, reason = code_of(lambda: call(pb.SleepRequest(level=level), timeout=DEADLINE_S))
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, f"level {level}: there are 1 and 2")
    assert shards[0].describe().sleep_level == 0


def test_a_shard_whose_files_have_changed_sleeps_on(saved_model: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in saved_model().folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    with running_shards(folder, tmp_path / "sockets", 1) as shards:
        sleep(shards, 2)
        config = folder / "config.json"
        kept = config.read_text()
        config.write_text(kept.replace("{", '{"another": 1,', 1))
        code, reason = code_of(lambda: wake_up(shards))
        assert code == grpc.StatusCode.FAILED_PRECONDITION
        assert "the files of the model are others than those that were loaded" in reason
        assert shards[0].describe().sleep_level == 2
        config.write_text(kept)
        wake_up(shards)
        assert generate(shards)


def test_adapters_are_forgotten(saved_model: Callable[..., Any], tmp_path: Path) -> None:
    folder = write(tmp_path / "adapter", tensors())
    with running_shards(saved_model().folder, tmp_path / "sockets", 1) as shards:
        load = pb.LoadAdapterRequest(path=str(folder))
        (loaded,) = ask(shards, "LoadAdapter", load)
        sleep(shards, 1)
        wake_up(shards)
        admit: dict[str, Any] = {"token_ids": PROMPT, "prompt_len": 7, "block_ids": [5], "sampling": greedy()}
        admitted = [pb.Admit(slot=3, adapter_id=loaded.adapter_id, **admit)]
        stream = shards[0].open(shards[0].describe().last_epoch + 1)
        outcome = stream.ask(admitted=admitted, span_slots=[3], span_starts=[0], span_lens=[7])
        assert [error.message for error in outcome.slot_errors] == [
            f"adapter {loaded.adapter_id} is not loaded"
        ]
        stream.close()
        assert ask(shards, "LoadAdapter", load) == [loaded]
        stream = shards[0].open(shards[0].describe().last_epoch + 1)
        outcome = stream.ask(admitted=admitted, span_slots=[3], span_starts=[0], span_lens=[7])
        assert (list(outcome.slot_errors), len(outcome.sampled_ids)) == ([], 1)
