"""The gRPC API of a real server, by grpcio: the same tokens as over HTTP, keys, health, and the example."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from e2e import faults
from e2e.launched import Launched, reserved_port
from e2e.models import make_model
from grpc_health.v1 import health_pb2, health_pb2_grpc
from penstock_server.pb import api_pb2, api_pb2_grpc

KEY = "key-of-a-test"
METADATA = [("authorization", f"Bearer {KEY}")]
REPOSITORY = Path(__file__).parents[2]


class Served(NamedTuple):
    """A server that asks for a key."""

    launched: Launched
    address: str
    channel: Any

    @property
    def stub(self) -> Any:
        return api_pb2_grpc.InferenceStub(self.channel)  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    model, tmp = make_model(tmp_path_factory.mktemp("model")), tmp_path_factory.mktemp("run")
    flags = (f"--model-id={model}", "--dtype=float32", f"--api-key={KEY}", faults.hold_flag(tmp))
    with reserved_port() as port, Launched(tmp, *flags, f"--grpc-port={port}") as launched:
        launched.wait_until_serving()
        address = f"127.0.0.1:{port}"
        with grpc.insecure_channel(address) as channel:
            yield Served(launched, address, channel)


def greedy(**fields: Any) -> api_pb2.GenerateRequest:
    return api_pb2.GenerateRequest(sampling=api_pb2.Sampling(temperature=0), **fields)


def tokens_of(served: Served, request: api_pb2.GenerateRequest) -> list[Any]:
    responses = list(served.stub.Generate(request, metadata=METADATA, timeout=60))
    assert responses[0].WhichOneof("event") == "accepted"
    return [response.token for response in responses[1:]]


def test_the_tokens_are_those_of_http(served: Served) -> None:
    body = {"inputs": "hello", "parameters": {"max_new_tokens": 8, "details": True}}
    headers = {"Authorization": f"Bearer {KEY}"}
    whole = post(served.launched, "/generate", body, headers)
    tokens = tokens_of(served, greedy(text="hello", max_tokens=8))
    assert [token.id for token in tokens] == [token["id"] for token in whole["details"]["tokens"]]
    assert "".join(token.text for token in tokens) == whole["generated_text"]
    assert tokens[-1].finish.reason == api_pb2.FINISH_REASON_LENGTH
    ids = [token["id"] for token in post(served.launched, "/tokenize", {"inputs": "hello"}, headers)]
    by_ids = tokens_of(served, greedy(token_ids=api_pb2.TokenIds(ids=ids), max_tokens=8))
    assert [token.id for token in by_ids] == [token.id for token in tokens]


def post(launched: Launched, path: str, body: object, headers: dict[str, str]) -> Any:
    status, answer = launched.post(path, body, headers)
    assert status == 200, answer
    return answer


def test_errors_have_their_codes(served: Served) -> None:
    with pytest.raises(grpc.RpcError) as no_key:
        served.stub.GetModelInfo(api_pb2.GetModelInfoRequest(), timeout=60)
    assert no_key.value.code() is grpc.StatusCode.UNAUTHENTICATED
    with pytest.raises(grpc.RpcError) as too_long:
        tokens_of(served, greedy(text="x" * 300, max_tokens=8))
    error: Any = too_long.value
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "`prompt` must have at most 255 tokens (--max-input-tokens). Given: 300" in error.details()
    assert dict(error.trailing_metadata())["error-type"] == "validation"


def test_a_generation_is_aborted_by_its_id(served: Served) -> None:
    request = greedy(text="hello", request_id="mine", ignore_eos=True)
    with faults.held(served.launched):
        stream = served.stub.Generate(request, metadata=METADATA, timeout=60)
        assert next(stream).accepted.request_id == "mine"
        aborted = served.stub.Abort(api_pb2.AbortRequest(request_id="mine"), metadata=METADATA, timeout=60)
        assert aborted.aborted
        with pytest.raises(grpc.RpcError) as ended:
            list(stream)
    assert ended.value.code() is grpc.StatusCode.CANCELLED


def test_the_server_describes_itself(served: Served) -> None:
    info = served.stub.GetModelInfo(api_pb2.GetModelInfoRequest(), metadata=METADATA, timeout=60)
    assert (info.max_total_tokens, info.model_type, info.device) == (256, "llama", "cpu")
    loads = served.stub.GetLoads(api_pb2.GetLoadsRequest(), metadata=METADATA, timeout=60)
    assert loads.ready
    assert loads.kv_blocks_total > 0
    prober: Any = health_pb2_grpc.HealthStub(served.channel)
    health = prober.Check(health_pb2.HealthCheckRequest(), timeout=60)
    assert health.status == health_pb2.HealthCheckResponse.SERVING


def test_the_example_writes_a_text(served: Served) -> None:
    example = [sys.executable, "examples/grpc_client.py", "hello", f"--address={served.address}"]
    done = subprocess.run(
        [*example, f"--key={KEY}", "--max-tokens=4"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()
    refused = subprocess.run(
        [*example, "--key=wrong"], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )
    assert refused.returncode == 1
    assert refused.stderr.strip() == "UNAUTHENTICATED: the API key is not valid"


def test_a_port_in_use_is_reported_before_the_model_loads(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        flag = f"--grpc-port={taken.getsockname()[1]}"
        with Launched(tmp_path, flag) as launched:
            code, stderr = launched.end()
    assert code == 2
    assert "--grpc-port and --hostname choose another address" in stderr
