"""Steps over the socket of a real shard: their rate, and the processor time of its threads for each of them."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.step_cost import scene

_RUN = "/penstock.engine.v1.Engine/Run"
_NUM_WARM, _NUM_COUNTED = 100, 400
# The number of plans in flight, the same as with the router.
_IN_FLIGHT = 2
_START_TIMEOUT_S = 120.0
STEPPING = "stepping"


class Cost(NamedTuple):
    """The cost of one step, in microseconds."""

    wall: float
    # Processor time of the thread that steps, and of all others together.
    stepping: float
    stream: float


class Shard:
    """A watched shard, ready."""

    def __init__(self, process: subprocess.Popen[str], channel: grpc.Channel) -> None:
        self._process = process
        self._channel = channel
        self._epoch = 0

    def cost(self, num_rows: int, sampling: str, pause_s: float = 0.0) -> Cost:
        """The cost of a decode step of `num_rows` rows; `pause_s` passes before each plan, as if a larger model ran."""
        self._epoch += 1
        plans: SimpleQueue[bytes | None] = SimpleQueue()
        outcomes = self._channel.stream_stream(_RUN)(iter(plans.get, None))
        source = scene.plans(self._epoch, num_rows, sampling)
        made = [next(source) for _ in range(_NUM_WARM + _NUM_COUNTED)]
        _exchange(made[:_NUM_WARM], plans, outcomes, pause_s)
        before, began = self._spent(), time.perf_counter()
        _exchange(made[_NUM_WARM:], plans, outcomes, pause_s)
        wall, after = time.perf_counter() - began, self._spent()
        plans.put(None)
        spent = {name: (after[name] - before.get(name, 0)) / _NUM_COUNTED / 1e3 for name in after}
        stepping = spent.pop(STEPPING)
        return Cost(1e6 * wall / _NUM_COUNTED, stepping, sum(spent.values()))

    def _spent(self) -> dict[str, int]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: dict[str, int] = json.loads(self._process.stdout.readline())
        return found


def _exchange(made: list[bytes], plans: SimpleQueue[bytes | None], outcomes: Any, pause_s: float) -> None:
    for plan in made[:_IN_FLIGHT]:
        plans.put(plan)
    for plan in made[_IN_FLIGHT:]:
        next(outcomes)
        time.sleep(pause_s)
        plans.put(plan)
    for _ in range(_IN_FLIGHT):
        next(outcomes)


@contextmanager
def shard(model: Path, folder: Path, *flags: str) -> Iterator[Shard]:
    """A shard of its own process that serves the model on one thread."""
    path = folder / "shard.sock"
    sizes = (f"{name}={value}" for name, value in scene.SIZES.items())
    command = [sys.executable, "-m", "benchmarks.step_cost.watched_shard", f"--model-path={model}", "--device=cpu",
               f"--uds-path={path}", "--load-format=dummy", "--threads=1",
               f"--cuda-graphs={','.join(map(str, scene.NUMS_ROWS))}", *sizes, *flags]  # fmt: skip
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    # By itself grpcio sends the socket's path as the authority, which is none for HTTP/2.
    channel = grpc.insecure_channel(f"unix:{path}", options=[("grpc.default_authority", "localhost")])
    try:
        _wait_until_ready(process, channel)
        yield Shard(process, channel)
    finally:
        channel.close()
        process.terminate()
        process.wait(30)


def _wait_until_ready(process: subprocess.Popen[str], channel: grpc.Channel) -> None:
    health: Any = health_pb2_grpc.HealthStub(channel)
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            health.Check(health_pb2.HealthCheckRequest(), timeout=1.0, wait_for_ready=True)
            return
        except grpc.RpcError:
            time.sleep(0.1)
    raise RuntimeError("the shard did not start")
