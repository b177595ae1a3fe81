"""A real Ray cluster: a machine of its own (network namespace) for each raylet."""

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from e2e.hosts import Host
from e2e.launched import arguments

ROOT = Path(__file__).parents[2]
_PORT = 6379
# Raylets that are killed are missed soon, and nothing is killed because others fill this machine's memory.
_SETTINGS = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "4",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
# Chosen, because a raylet that has to be told them by its agents gives up after 15 s.
_AGENTS = (
    "--metrics-export-port=8100",
    "--dashboard-agent-grpc-port=8101",
    "--dashboard-agent-listen-port=8102",
    "--runtime-env-agent-port=8103",
)
_START_TIMEOUT_S = 240
_ATTEMPTS = 3
# A machine's own files, in the place of the folder that is named first.
_OWN_FILES = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"')


def site_packages() -> Path | None:
    """Where `make ray` has installed it."""
    found = sorted((ROOT / ".venv-ray").glob("lib/python*/site-packages/ray"))
    return found[0].parent if found else None


class RayCluster:
    """The first machine has the head, and no room for shards; each other one has a core."""

    def __init__(self, hosts: Sequence[Host], packages: Path, python: str) -> None:
        self.hosts = hosts
        self.address = f"{hosts[0].address}:{_PORT}"
        self._python = python
        # Paths of sockets have to be short.
        self.folder = Path(tempfile.mkdtemp(prefix="ray-"))
        self._log = self.folder / "start.log"
        paths = [str(packages), *filter(None, [os.environ.get("PYTHONPATH")])]
        # Said here, because Ray would else look for a token in the home folder.
        token = ("RAY_AUTH_MODE=token", f"RAY_AUTH_TOKEN={secrets.token_hex()}")
        # The command that a driver needs, too: `env` with these words.
        self.environment = ("env", f"PYTHONPATH={':'.join(paths)}", *token)
        head = ("--head", f"--port={_PORT}", f"--temp-dir={self.folder}", "--include-dashboard=false")
        self._join([hosts[0]], lambda host: self._begin(host, host.under, *head, "--num-cpus=0"))
        self.start_workers(hosts[1:])

    def start_workers(self, hosts: Sequence[Host]) -> None:
        """The machines join the cluster."""

        def begin(host: Host) -> subprocess.Popen[bytes]:
            under = (*host.under, *_OWN_FILES, str(self.folder))
            return self._begin(host, under, f"--address={self.address}", "--num-cpus=1")

        self._join(hosts, begin)

    def _join(self, hosts: Sequence[Host], begin: Callable[[Host], subprocess.Popen[bytes]]) -> None:
        """Ray gives up a raylet after 30 s, which is not enough on a machine that compiles at the same time."""
        for _ in range(_ATTEMPTS):
            # One after the other: each compiles what it imports, and there may be two cores.
            hosts = [host for host in hosts if begin(host).wait(_START_TIMEOUT_S) != 0]
            for host in hosts:
                host.kill()
        assert not hosts, self._log.read_text()

    def _begin(self, host: Host, under: Sequence[str], *flags: str) -> subprocess.Popen[bytes]:
        command = [*under, *self.environment, self._python, "-m", "ray.scripts.scripts", "start"]
        own = (f"--node-ip-address={host.address}", "--object-store-memory=80000000", "--num-gpus=0")
        environment = {**os.environ, **_SETTINGS, "TMPDIR": str(self.folder), "HF_HUB_OFFLINE": "1"}
        # A file: what it starts keeps its output open, and would keep a pipe from ending.
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [*command, *own, *_AGENTS, *flags], env=environment, stdout=log, stderr=log
            )

    def raylet(self, host: Host) -> int:
        """The process that makes the machine part of the cluster."""
        [pid] = [pid for pid in host.pids() if arguments(pid)[0].endswith("/raylet")]
        return pid

    def with_rank(self, rank: int) -> Host:
        """The machine that computes it."""
        [host] = [host for host in self.hosts if self.ranks(host) == [rank]]
        return host

    def ranks(self, host: Host) -> list[int]:
        """The ranks that the machine computes."""
        words = [word for pid in host.pids() for word in arguments(pid)]
        return sorted(int(word.removeprefix("--rank=")) for word in words if word.startswith("--rank="))

    def left(self) -> list[list[str]]:
        """Command lines of all that is not Ray's own."""
        lines = [arguments(pid) for host in self.hosts for pid in host.pids()]
        ours = ("launcher", "penstock-router", "penstock_server")
        return [line for line in lines if any(word.endswith(ours) for word in line[:4])]

    def end(self) -> None:
        for host in self.hosts:
            host.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
