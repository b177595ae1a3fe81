"""A shard that also listens on TCP: who may call there, and that it does so only when it is told to."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from penstock_server.pb import engine_pb2 as pb
from penstock_server.pb import engine_pb2_grpc
from shard_client import DEADLINE_S, ENDPOINTS, Shard, greedy, listening_ports, run_shard, running_shards

SECRET = "a-secret-of-this-test"
RIGHT = [("penstock-secret", SECRET)]
# Each is one of those that somebody may try: none, nearly the right one, more of it, another name.
WRONG = [
    [],
    [("penstock-secret", "")],
    [("penstock-secret", SECRET[:-1])],
    [("penstock-secret", SECRET + "x")],
    [("penstock-secret", SECRET.upper())],
    [("authorization", SECRET)],
]


@pytest.fixture(scope="module")
def model(saved_model: Callable[..., Any]) -> Any:
    return saved_model()


@pytest.fixture(scope="module", params=ENDPOINTS)
def endpoint(request: pytest.FixtureRequest) -> str:
    return f"--endpoint={request.param}"


class Listening(NamedTuple):
    shard: Shard
    channel: grpc.Channel

    @property
    def stub(self) -> Any:
        return engine_pb2_grpc.EngineStub(self.channel)  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def listening(model: Any, endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    folder = tmp_path_factory.mktemp("tcp")
    secret = folder / "secret"
    secret.write_text(SECRET + "\n")
    flags = [endpoint, "--listen", "tcp:127.0.0.1:0", "--secret-file", secret]
    with running_shards(model.folder, folder, flags=flags) as [shard]:
        [port] = listening_ports(shard)
        assert f"also listening on tcp, port {port} of 127.0.0.1: asks for a secret" in shard.read_log()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Listening(shard, channel)


def test_a_shard_that_is_not_told_to_listens_on_no_tcp_port(
    model: Any, endpoint: str, tmp_path: Path
) -> None:
    with running_shards(model.folder, tmp_path, flags=[endpoint]) as [shard]:
        assert listening_ports(shard) == []


def test_with_the_secret_it_answers_as_on_its_socket(listening: Listening) -> None:
    described = listening.stub.Describe(pb.DescribeRequest(), timeout=DEADLINE_S, metadata=RIGHT)
    assert described == listening.shard.describe()
    beats = listening.stub.Watch(pb.WatchRequest(interval_ms=50), timeout=DEADLINE_S, metadata=RIGHT)
    assert next(beats) is not None
    beats.cancel()
    epoch = 1 + described.last_epoch
    admit = pb.Admit(slot=1, token_ids=[5, 6, 7], prompt_len=3, block_ids=[4], sampling=greedy())
    plan = pb.Plan(epoch=epoch, step=1, admitted=[admit], span_slots=[1], span_starts=[0], span_lens=[3])
    outcomes = listening.stub.Run(iter([plan]), timeout=DEADLINE_S, metadata=RIGHT)
    assert list(next(outcomes).sampled_slots) == [1]


@pytest.mark.parametrize("metadata", WRONG)
def test_without_the_secret_nothing_is_answered(listening: Listening, metadata: Any) -> None:
    stub = listening.stub
    before = listening.shard.describe().last_epoch
    health: Any = health_pb2_grpc.HealthStub(listening.channel)
    plan = pb.Plan(epoch=1000, step=1)
    calls: list[Callable[[], object]] = [
        lambda: stub.Describe(pb.DescribeRequest(), timeout=DEADLINE_S, metadata=metadata),
        lambda: stub.LoadAdapter(pb.LoadAdapterRequest(path="/"), timeout=DEADLINE_S, metadata=metadata),
        lambda: stub.UnloadAdapter(pb.UnloadAdapterRequest(), timeout=DEADLINE_S, metadata=metadata),
        lambda: next(stub.Watch(pb.WatchRequest(interval_ms=50), timeout=DEADLINE_S, metadata=metadata)),
        lambda: next(stub.Run(iter([plan]), timeout=DEADLINE_S, metadata=metadata)),
        lambda: health.Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE_S, metadata=metadata),
    ]
    for call in calls:
        with pytest.raises(grpc.RpcError) as refused:
            call()
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert refused.value.details() == "the secret of the replica is missing or wrong"
    assert listening.shard.describe().last_epoch == before, "no plan of it was taken"


def test_it_needs_a_secret_for_other_machines_and_one_that_is_of_use(model: Any, tmp_path: Path) -> None:
    short, missing = tmp_path / "short", tmp_path / "missing"
    short.write_text("short\n")
    socket = tmp_path / "s.sock"
    flags = ("--model-path", model.folder, "--uds-path", socket, "--device", "cpu")
    for more, said in (
        (("--listen", "tcp:0.0.0.0:0"), "0.0.0.0 is reached from other machines; that needs --secret-file"),
        (("--listen", "tcp:[::]:0"), "that needs --secret-file"),
        (("--listen", "tcp:127.0.0.1:0", "--secret-file", short), "one word of 16 to 1024 ASCII"),
        (("--listen", "tcp:127.0.0.1:0", "--secret-file", missing), "cannot be read"),
        (("--listen", "tcp:localhost:0"), "an address in numbers"),
        (("--listen", "tcp:127.0.0.1:99999"), "port 99999 is above 65535"),
        (("--secret-file", short), "--secret-file has no effect without --listen"),
    ):
        ended = run_shard(*flags, *more)
        assert ended.returncode == 2
        assert said in ended.stderr
        assert "short\n" not in ended.stderr
        assert not socket.exists()


def test_an_address_that_is_taken_is_named(
    listening: Listening, endpoint: str, model: Any, tmp_path: Path
) -> None:
    [port] = listening_ports(listening.shard)
    flags = ("--model-path", model.folder, "--uds-path", tmp_path / "s.sock", "--device", "cpu", endpoint)
    ended = run_shard(*flags, "--listen", f"tcp:127.0.0.1:{port}")
    assert ended.returncode == 1
    assert f"tcp:127.0.0.1:{port}" in ended.stderr
