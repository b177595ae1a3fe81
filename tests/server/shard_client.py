"""Starts shards as real processes and speaks the wire to them, as the router does."""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

import grpc
import penstock_kernels
import penstock_server
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from penstock_server.engine.plan import Admit, Plan
from penstock_server.pb import engine_pb2 as pb
from penstock_server.pb import engine_pb2_grpc

REPOSITORY = Path(__file__).parents[2]
# Generous: a machine that compiles at the same time takes a minute to start four processes.
DEADLINE_S = 180.0
_RUN = "/penstock.engine.v1.Engine/Run"


# Who may serve a shard's socket. An environment that was made without the extension module has one of them only.
ENDPOINTS = (
    "grpcio",
    pytest.param(
        "tonic",
        marks=pytest.mark.skipif(
            importlib.util.find_spec("penstock_endpoint") is None, reason="penstock-endpoint is not installed"
        ),
    ),
)


def environment() -> dict[str, str]:
    """The packages that the tests import. Those of the tree have no ops in C, which people's shards compute with."""
    folders = {str(Path(package.__path__[0]).parent) for package in (penstock_server, penstock_kernels)}
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}


def run_shard(*flags: object, timeout: float = DEADLINE_S) -> subprocess.CompletedProcess[str]:
    """Run a shard that is expected to end by itself."""
    command = [sys.executable, "-m", "penstock_server", *map(str, flags)]
    return subprocess.run(
        command, check=False, env=environment(), capture_output=True, text=True, timeout=timeout
    )


class Stream:
    """One open `Run` stream: plans go out at once, outcomes are read when asked for."""

    def __init__(self, channel: grpc.Channel, epoch: int) -> None:
        self.epoch = epoch
        self.step = 0
        self._plans: SimpleQueue[bytes | None] = SimpleQueue()
        run = channel.stream_stream(_RUN, response_deserializer=pb.Outcome.FromString)
        self.call = run(iter(self._plans.get, None), timeout=DEADLINE_S)

    def send(self, **fields: Any) -> None:
        """Send the next plan."""
        self.step += 1
        plan = pb.Plan(**{"epoch": self.epoch, "step": self.step, **fields})
        self._plans.put(plan.SerializeToString())

    def read(self) -> pb.Outcome:
        """The next outcome."""
        outcome: pb.Outcome = next(self.call)
        return outcome

    def ask(self, **fields: Any) -> pb.Outcome:
        """Send a plan and wait for its outcome."""
        self.send(**fields)
        return self.read()

    def send_bytes(self, encoded: bytes) -> None:
        """Send what need not be a plan."""
        self._plans.put(encoded)

    def close(self) -> None:
        """No more plans."""
        self._plans.put(None)


class Shard:
    """One shard process."""

    def __init__(self, model: Path, socket: Path, *flags: object) -> None:
        self.socket = socket
        command = [
            sys.executable,
            "-m",
            "penstock_server",
            "--model-path",
            model,
            "--uds-path",
            socket,
            "--device",
            "cpu",
        ]
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self.process = subprocess.Popen([*map(str, [*command, *flags])], env=environment(), stderr=self.log)
        # By itself grpcio sends the socket's path as the authority, which is none for HTTP/2.
        options = [("grpc.max_receive_message_length", 2**26), ("grpc.default_authority", "localhost")]
        self.channel = grpc.insecure_channel(f"unix:{socket}", options=options)
        self.stub: Any = engine_pb2_grpc.EngineStub(self.channel)  # type: ignore[no-untyped-call]
        self.health: Any = health_pb2_grpc.HealthStub(self.channel)
        self._epoch = 0

    def wait_until_ready(self) -> None:
        """Until the health service says SERVING; fails with the shard's log when the process ends first."""
        request = health_pb2.HealthCheckRequest(service="penstock.engine.v1.Engine")
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"shard exited with {self.process.returncode}:\n{self.read_log()}")
            try:
                if (
                    self.health.Check(request, timeout=1.0, wait_for_ready=True).status
                    == health_pb2.HealthCheckResponse.SERVING
                ):
                    return
            except grpc.RpcError as error:
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    raise
        raise TimeoutError(f"shard not ready:\n{self.read_log()}")

    def read_log(self) -> str:
        self.log.seek(0)
        return self.log.read().decode()

    def open(self, epoch: int | None = None) -> Stream:
        """A new stream; by default of the next epoch."""
        self._epoch = epoch if epoch is not None else self._epoch + 1
        return Stream(self.channel, self._epoch)

    def describe(self) -> pb.DescribeResponse:
        response: pb.DescribeResponse = self.stub.Describe(pb.DescribeRequest(), timeout=DEADLINE_S)
        return response

    def stop(self) -> int:
        """SIGTERM, as the launcher does; returns the exit code."""
        self.channel.close()
        self.process.terminate()
        try:
            return self.process.wait(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.channel.close()
        self.log.close()


@contextmanager
def running_shards(
    model: Path, folder: Path, world_size: int = 1, flags: Sequence[object] = ()
) -> Iterator[list[Shard]]:
    """A tensor-parallel group of real processes, ready."""
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[Shard] = []
    try:
        for rank in range(world_size):
            group = ("--rank", rank, "--world-size", world_size, "--rendezvous-dir", folder, "--threads", 1)
            shards.append(Shard(model, folder / f"{rank}.sock", *group, *flags))
        for shard in shards:
            shard.wait_until_ready()
        yield shards
    finally:
        for shard in shards:
            shard.__exit__(None, None, None)


def execute_on_shards(shards: list[Shard]) -> Callable[[Plan], pb.Outcome]:
    """Runs plans of the driver on every rank of a group, and compares what the ranks say."""
    streams = [shard.open(1 + max(shard.describe().last_epoch for shard in shards)) for shard in shards]
    first_of_last_stage = len(shards) - len(shards) // shards[0].describe().num_stages

    def execute(plan: Plan) -> pb.Outcome:
        for stream in streams:
            stream.send(**plan_fields(plan))
        others = [stream.read() for stream in streams]
        told = others.pop(first_of_last_stage)
        for other in others:
            assert other.sampled_checksum == told.sampled_checksum
            assert list(other.slot_errors) == list(told.slot_errors)
            assert not other.sampled_ids
        return told

    return execute


def plan_fields(plan: Plan) -> dict[str, Any]:
    """A plan in protobuf's words, but for its numbers, which the stream gives."""
    return {
        "retired_slots": plan.retired,
        "admitted": [_admit_to_pb(admit) for admit in plan.admitted],
        "appended_slots": [append.slot for append in plan.appended],
        "appended_counts": [len(append.block_ids) for append in plan.appended],
        "appended_blocks": [block for append in plan.appended for block in append.block_ids],
        "copied_from": plan.copied_from,
        "copied_to": plan.copied_to,
        "span_slots": [span.slot for span in plan.spans],
        "span_starts": [span.start for span in plan.spans],
        "span_lens": [span.length for span in plan.spans],
        **_by_span(plan, "open_spans", "open_drafts", plan.open_drafts),
        **_by_span(plan, "snapshot_spans", "snapshots", plan.snapshots),
    }


def _by_span(plan: Plan, numbers: str, values: str, by_slot: dict[int, int]) -> dict[str, list[int]]:
    """The values of some spans, by the numbers of the spans."""
    found = {number: by_slot[span.slot] for number, span in enumerate(plan.spans) if span.slot in by_slot}
    return {numbers: [*found], values: [*found.values()]}


def _admit_to_pb(admit: Admit) -> pb.Admit:
    message = pb.Admit(
        slot=admit.slot,
        token_ids=admit.token_ids,
        prompt_len=admit.prompt_len,
        block_ids=admit.block_ids,
        snapshot=admit.snapshot,
        sampling=pb.SamplingParams(
            **{name: getattr(admit.sampling, name) for name in admit.sampling.__slots__}
        ),
    )
    if admit.grammar is not None:
        kind: Any = f"KIND_{admit.grammar.kind.upper()}"
        message.grammar.CopyFrom(pb.Grammar(kind=kind, text=admit.grammar.text))
    return message


def greedy(**fields: Any) -> pb.SamplingParams:
    """Sampling parameters as a router sets them; greedy unless told otherwise."""
    neutral = {"top_p": 1.0, "typical_p": 1.0, "repetition_penalty": 1.0}
    return pb.SamplingParams(**{**neutral, **fields})


def listening_ports(shard: Shard) -> list[int]:
    """TCP ports that the process listens on, as the system says."""
    pid = shard.process.pid
    sockets = {
        found[1]
        for link in Path(f"/proc/{pid}/fd").iterdir()
        if (found := re.fullmatch(r"socket:\[(\d+)\]", str(link.readlink())))
    }
    ports = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:
                ports.append(int(fields[1].rpartition(":")[2], 16))
    return ports
