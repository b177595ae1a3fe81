"""The faults of a running server: processes killed and stopped, shards that answer what is wrong."""

import http.client
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e.clients import COMPLETE, Load
from e2e.launched import Launched, arguments, wait_until
from e2e.oracle import SLACK

# The tiny model's tokens are bytes: a character that no other prompt has crashes or delays a step, or finds no kernel.
CRASH_CHAR, SLOW_CHAR, KERNEL_CHAR = "~", "^", "`"
SLOW_S = 4
# From this position of a sequence on, a held step takes two seconds: a stream that has 50 tokens more to come cannot
# end before the test does.
HOLD_FROM = 100
MAX_CONCURRENT = 64
WRONG_ANSWERS = ("count", "nan", "vocabulary", "differ", "epoch")
RESTART_S = 60.0
# A little longer than `MIN_STABLE_RUN` of the launcher.
STABLE_S = 2.2


def flags(tmp: Path, model: Path, max_concurrent: int = MAX_CONCURRENT) -> list[str]:
    """The flags of a server with every fault hook."""
    vocabulary = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    return [
        f"--model-id={model}",
        "--num-shard=2",
        "--dtype=float32",
        f"--max-concurrent-requests={max_concurrent}",
        "--max-restarts=10000",
        "--max-replays=1000",
        # Longer than a slow step, and short enough to wait for.
        f"--step-timeout={SLOW_S + 4}",
        f"--fault=crash-on-token:{vocabulary[CRASH_CHAR]}",
        f"--fault=slow-on-token:{vocabulary[SLOW_CHAR]}:{SLOW_S}",
        f"--fault=kernel-on-token:{vocabulary[KERNEL_CHAR]}",
        f"--fault=file:{tmp / 'order'}",
        hold_flag(tmp),
    ]


def hold_flag(tmp: Path) -> str:
    """The flag of a server with this run folder whose streams can be held."""
    return f"--fault=hold:{hold_file(tmp)}:{HOLD_FROM}"


def hold_file(tmp: Path) -> Path:
    """While it exists, streams are held."""
    return tmp / "hold"


@contextmanager
def held(server: Launched) -> Iterator[None]:
    """No stream that is long enough ends in this context, and no shard that starts gets ready."""
    hold_file(server.tmp).touch()
    try:
        yield
    finally:
        hold_file(server.tmp).unlink()


@contextmanager
def held_load(server: Launched, bodies: Sequence[dict[str, Any]], min_tokens: int = 5) -> Iterator[Load]:
    """Streams that all have so many tokens and are held in their middle while the context is open."""
    with held(server):
        load = Load(server, bodies)
        load.wait_for_each(min_tokens)
        assert load.ends() == [], "a stream ended before it was harmed"
        yield load
        assert COMPLETE not in load.ends(), "a stream ended before it was harmed"


def shard(server: Launched, rank: int) -> int:
    """The process of a rank."""
    return _find(server, f"--rank={rank}")


def shards_of(server: Launched, replica: int) -> list[int]:
    """The processes of a replica that has one shard: one, or none."""
    socket = f"/shard-{replica}.sock"

    def serves(argument: str) -> bool:
        return argument.startswith("--uds-path=") and argument.endswith(socket)

    return [pid for pid in server.children() if any(serves(argument) for argument in arguments(pid))]


def shard_of(server: Launched, replica: int) -> int:
    """The process of a replica's only shard."""
    [pid] = shards_of(server, replica)
    return pid


def fork_server(server: Launched) -> int:
    """The process that shards are forked from."""
    return _find(server, "penstock_server.process.fork_server")


def router(server: Launched) -> int:
    """The router's process."""
    return _find(server, "--supervised=true")


def _find(server: Launched, argument: str) -> int:
    found: list[int] = []

    def look() -> bool:
        # Found processes are kept: to look again is to miss a process that has ended in between.
        found[:] = [pid for pid in server.children() if argument in arguments(pid)]
        return bool(found)

    wait_until(look, 60)
    return found[0]


def order(server: Launched, kind: str, rank: int) -> None:
    """Have a shard do something wrong as soon as it can, but not so soon that it counts as one that fails at once: the
    launcher waits ever longer before it starts such a group again."""
    time.sleep(STABLE_S)
    draft = server.tmp / f"draft-{rank}"
    draft.write_text(kind)
    draft.rename(server.tmp / f"order-{rank}")


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def restarts(server: Launched) -> int:
    """How often the shards were restarted."""
    return int(json.loads(server.get("/stats")[1])["restarts"])


def num_requests(server: Launched) -> int:
    """Requests that wait or run."""
    stats = json.loads(server.get("/stats")[1])
    return int(stats["waiting"] + stats["running"])


def replicas(server: Launched) -> list[dict[str, Any]]:
    """The statistics that the server reports of each replica."""
    told: list[dict[str, Any]] = json.loads(server.get("/stats")[1])["replicas"]
    return told


def ready(server: Launched) -> list[bool]:
    """Whether each replica is."""
    return [replica["ready"] for replica in replicas(server)]


def is_ready(server: Launched) -> bool:
    """A connection that breaks with the router is no answer."""
    try:
        return server.get("/health")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def time_until(done: Callable[[], object], timeout_s: float) -> float:
    """Seconds until it is done."""
    started = time.monotonic()
    wait_until(done, timeout_s)
    return time.monotonic() - started


def is_gone(pid: int) -> bool:
    return not arguments(pid)


def wait_until_ready(server: Launched) -> float:
    """Seconds until the server is ready again."""
    return time_until(lambda: is_ready(server), RESTART_S * SLACK)


Fault = Callable[[Launched], None]


def _kill(rank: int) -> Fault:
    return lambda server: kill(shard(server, rank))


def _stop(rank: int) -> Fault:
    return lambda server: stop(shard(server, rank))


def _order(kind: str, rank: int) -> Fault:
    return lambda server: order(server, kind, rank)


# The faults of which one is drawn, by name.
RANDOM: dict[str, Fault] = {
    "kill rank 0": _kill(0),
    "kill rank 1": _kill(1),
    "stop rank 0": _stop(0),
    "stop rank 1": _stop(1),
    "kill fork server": lambda server: kill(fork_server(server)),
    "kill router": lambda server: kill(router(server)),
    "stop router": lambda server: stop(router(server)),
    "hang of rank 0": _order("hang", 0),
    **{f"{kind} of rank 0": _order(kind, 0) for kind in WRONG_ANSWERS},
    **{f"{kind} of rank 1": _order(kind, 1) for kind in ("differ", "epoch")},
}
