"""A shard that was forked is one that was started: files, variables, signals, exit codes, and bits."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import fork_client
import pytest
from fork_client import Forked, ForkServer, request_of
from penstock_server.process import fork_server
from shard_client import environment

PROBE = [str(Path(__file__).with_name("forked_probe.py"))]
VARIABLES = {**environment(), "GIVEN": "1"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ForkServer]:
    """Its shards are probes."""
    with ForkServer(tmp_path, VARIABLES, PROBE) as server:
        yield server


def wait_until(done: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """A zombie is gone, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].startswith("Z")
    except OSError:
        return True


def has(shard: Forked) -> Any:
    """The attributes that a probe reports of itself."""
    return json.loads(shard.lines_until("}\n").splitlines()[-1])


def test_a_shard_has_what_it_would_have_if_it_was_started(server: ForkServer, tmp_path: Path) -> None:
    wanted = {**VARIABLES, "TMPDIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": "3"}
    with server.ask("--before") as before:
        before.pid()
        before.end()
    with server.ask("--stay", environment=wanted) as shard:
        pid, found = shard.pid(), has(shard)
        assert found["environment"] == wanted
        assert found["folder"] == os.getcwd()
        assert found["group"] == pid
        assert found["flags"][0] == "--stay"
        assert found["flags"][1].startswith("--parent-pipe-fd=")
        assert (found["is_forked"], found["is_default"], found["threads"]) == (True, True, 1)
        # stdin, stdout, stderr and the pipe of its launcher; nothing of the fork server, or of other shards.
        assert [name.partition(":")[0] for name in found["files"]] == ["/dev/null", "pipe", "pipe", "pipe"]
        line = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
        assert line == [sys.executable, "-P", "-m", "penstock_server", "--stay"]


def test_exit_codes_are_passed_on(server: ForkServer) -> None:
    for flag, code, text in (("--return", 3, ""), ("--exit", 7, ""), ("--raise", 1, "ValueError: as asked")):
        with server.ask(flag) as shard:
            shard.pid()
            assert shard.end() == code
            assert text in shard.written()
            assert shard.answer() is None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
def test_signals_are_passed_on(server: ForkServer, number: signal.Signals) -> None:
    with server.ask("--stay") as shard:
        pid = shard.pid()
        has(shard)
        os.kill(pid, number)
        assert shard.end() == -number


def test_the_first_request_is_checked_before_anything_is_imported(server: ForkServer) -> None:
    with server.ask("--wrong") as wrong:
        assert wrong.end() == 1
        assert wrong.written() == "checked\n"
    with server.ask("--right") as right, server.ask("--wrong") as other:
        right.pid()
        assert right.end() == 3
        assert right.written().startswith("checked\n{")
        other.pid()
        assert other.end() == 3


def test_many_shards_at_once(server: ForkServer) -> None:
    with ExitStack() as stack:
        shards = [stack.enter_context(server.ask("--stay")) for _ in range(8)]
        pids = [shard.pid() for shard in shards]
        assert len(set(pids)) == 8
    wait_until(lambda: all(map(is_gone, pids)))


def test_a_launcher_that_goes_takes_its_shard_and_its_children_along(server: ForkServer) -> None:
    with server.ask("--stay", "--child") as shard:
        pid, child = shard.pid(), has(shard)["child"]
        os.kill(pid, signal.SIGSTOP)
        shard.close()
        wait_until(lambda: is_gone(pid) and is_gone(child))
    with server.ask("--return") as other:
        other.pid()
        assert other.end() == 3


def test_who_has_gone_gets_no_shard(server: ForkServer) -> None:
    os.kill(server.process.pid, signal.SIGSTOP)
    with server.ask("--stay") as gone, server.ask("--return") as kept:
        gone.close()
        os.kill(server.process.pid, signal.SIGCONT)
        kept.pid()
        assert kept.end() == 3
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    wait_until(lambda: all(is_gone(int(child)) for child in children))


def test_it_ends_with_its_launcher_and_takes_all_along(server: ForkServer) -> None:
    with server.ask("--stay", "--child") as shard, server.ask("--stay") as stopped:
        pids = [shard.pid(), has(shard)["child"], stopped.pid()]
        os.kill(pids[2], signal.SIGSTOP)
        server.leave()
        assert server.process.wait(timeout=60) == 0
        wait_until(lambda: all(map(is_gone, pids)))


def test_shards_outlive_a_fork_server_that_is_killed(server: ForkServer) -> None:
    with server.ask("--stay") as shard:
        pid = shard.pid()
        has(shard)
        server.process.kill()
        assert shard.answer() is None
        assert not is_gone(pid)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: is_gone(pid))


WORDS = ["-P", "-m", "penstock_server"]
WRONG: dict[str, tuple[bytes, int | None, int, str]] = {
    "too long": (b"", (1 << 20) + 1, 3, "longer than 1048576"),
    "no JSON": (b"{", None, 3, "no JSON"),
    "too few files": (request_of(WORDS, VARIABLES), None, 2, "has not the fields or file descriptors"),
    "too many files": (request_of(WORDS, VARIABLES), None, 4, "has not the fields or file descriptors"),
    "another field": (request_of(WORDS, VARIABLES, more=1), None, 3, "has not the fields"),
    "no text": (request_of(WORDS, {"A": 1}), None, 3, "has not the fields"),  # type: ignore[dict-item]
    "another program": (request_of(["-c", "print()"], VARIABLES), None, 3, "only shards are forked"),
    "another Python": (request_of(WORDS, VARIABLES, program="/x/python"), None, 3, "its Python is "),
    "a new variable": (request_of(WORDS, {**VARIABLES, "OMP_X": "7"}), None, 3, "variable OMP_X has another"),
    "one less": (request_of(WORDS, environment()), None, 3, "the variable GIVEN has another value"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_forked_is_refused(server: ForkServer, name: str) -> None:
    message, length, num_files, reason = WRONG[name]
    with Forked(server.path, message, length, num_files) as refused:
        assert reason in refused.answer()["refused"]
        assert refused.answer() is None
    with server.ask("--return") as shard:
        shard.pid()
        assert shard.end() == 3


@pytest.mark.parametrize(
    ("command", "name"),
    [(["sh", "-c", 'ulimit -n 200; exec "$@"', "sh"], "limits"), (["nice", "-n", "3"], "niceness")],
)
def test_a_process_that_passes_on_other_things_is_refused(
    server: ForkServer, command: list[str], name: str
) -> None:
    """It would start shards with a limit or a priority that one of this fork server has not."""
    code = "import sys; from fork_client import *; from pathlib import Path\n"
    code += f"print(Forked(Path({str(server.path)!r}), sys.stdin.buffer.read()).answer())"
    asked = subprocess.run(
        [*command, sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(Path(fork_client.__file__).parent)},
        input=request_of(WORDS, VARIABLES),
        capture_output=True,
        check=True,
    )
    assert f"its process inherits another value of {name}" in asked.stdout.decode()


BITS = """
import hashlib, os, sys
from pathlib import Path
from penstock_server.process import cli
cli.load_libraries()
num_before = len(list(Path("/proc/self/task").iterdir()))
if sys.argv[1] == "forked" and (pid := os.fork()):
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
import numpy as np, torch
from penstock_kernels import ops
torch.set_num_threads(2)
draw = torch.Generator().manual_seed(1)
a, b = torch.randn(513, 700, generator=draw), torch.randn(700, 611, generator=draw)
n = np.random.default_rng(0).standard_normal((700, 700))
results = [a @ b, torch.softmax(a * 3, 1), (a.bfloat16() @ b.bfloat16()).float(), torch.from_numpy(n @ n)]
digest = hashlib.sha256(b"".join(it.numpy().tobytes() for it in results)).hexdigest()
threads = len(list(Path("/proc/self/task").iterdir()))
print(digest, threads, num_before, torch.cuda.is_initialized(), flush=True)
os._exit(0)
"""


def test_after_a_fork_all_threads_compute_the_same_bits() -> None:
    def computed(how: str, **variables: str) -> list[str]:
        ended = subprocess.run(
            [sys.executable, "-c", BITS, how],
            env={**environment(), **variables},
            check=True,
            capture_output=True,
            text=True,
            timeout=180,
        )
        return ended.stdout.split()

    started, forked = computed("started"), computed("forked")
    assert started == forked
    assert started[-1] == "False"
    assert int(started[1]) >= 2
    # The only threads before a fork are those of OpenBLAS, which ends them before a fork and makes them anew.
    assert computed("forked", OPENBLAS_NUM_THREADS="1")[2] == "1"


def test_a_process_that_has_begun_with_a_gpu_forks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    fork_server._check_devices()
    monkeypatch.setattr(os, "readlink", lambda _path: "/dev/nvidiactl")
    with pytest.raises(RuntimeError, match="has initialised CUDA"):
        fork_server._check_devices()


def test_a_real_shard_starts_serves_and_ends(saved_model: Callable[..., Any], tmp_path: Path) -> None:
    flags = ["--device=cpu", f"--uds-path={tmp_path / 's.sock'}"]
    with ForkServer(tmp_path, environment()) as server:
        with server.ask("--model-path=/none", *flags) as wrong:
            assert wrong.end() == 1
            assert "no such folder" in wrong.written()
        # Nothing has been imported for that.
        assert "libtorch" not in Path(f"/proc/{server.process.pid}/maps").read_text()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with server.ask(f"--model-path={saved_model().folder}", *flags) as shard:
                pid = shard.pid()
                log = shard.lines_until("ready after")
                assert "import took 0.0" in log
                os.kill(pid, number)
                assert shard.end() == (0 if number == signal.SIGTERM else -number)
        with server.ask(f"--model-path={saved_model().folder}", *flags) as shard:
            pid = shard.pid()
            shard.lines_until("ready after")
            server.process.kill()
            assert not is_gone(pid)
            shard.lose_launcher()
            wait_until(lambda: is_gone(pid))
