"""Runs an image as a container runtime does, in namespaces of its own: processes, mounts, network, names.

The root is read-only but for /tmp, /dev/shm and the folders that are given; the process has no capabilities and cannot
gain any; the network is a loopback device; ports below 1024 are open to all users, as in Docker.
"""

import os
import shlex
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from deploy.check.buildah import Image
from deploy.check.commands import CommandError

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LOG_TAIL = 4000


@dataclass(frozen=True)
class Start:
    """How a container is started."""

    arguments: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    # Folders of this machine by their place in the container.
    volumes: dict[str, Path] = field(default_factory=dict)
    user: str = ""
    shm_bytes: int = 64 << 20


class Container:
    """A running container; `with` ends it."""

    def __init__(self, image: Image, root: Path, start: Start, log: Path) -> None:
        self._image, self._root, self._log = image, root, log
        user = start.user or image.user
        self._as_user = _as_user(
            root, user, {"PATH": _PATH, "HOSTNAME": "0123456789ab", **image.env, **start.env}
        )
        mounts = _mounts(root, start)
        command = [*self._as_user, *image.entrypoint, *start.arguments]
        script = "\n".join(["set -eu", *mounts, f"exec {shlex.join(command)}"])
        kinds = ("--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--kill-child")
        with log.open("wb") as output:
            self._runtime = subprocess.Popen(
                ["unshare", *kinds, "sh", "-c", script], stdout=output, stderr=subprocess.STDOUT
            )

    def __enter__(self) -> "Container":
        return self

    def __exit__(self, *_: object) -> None:
        self._runtime.kill()
        self._runtime.wait()

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL:]

    def is_running(self) -> bool:
        return self._runtime.poll() is None

    def is_healthy(self) -> bool:
        """Whether the image's own health check succeeds."""
        inside = ("nsenter", "--target", str(self._process()), "--mount", "--pid", "--net")
        done = subprocess.run([*inside, *self._as_user, *self._image.health_check], capture_output=True)
        return done.returncode == 0

    def curl(self, *arguments: str) -> subprocess.Popen[str]:
        """curl of this machine in the container's network."""
        line = [
            "nsenter",
            "--target",
            str(self._process()),
            "--net",
            "curl",
            "--silent",
            "--no-buffer",
            *arguments,
        ]
        return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def terminate(self) -> None:
        os.kill(self._process(), signal.SIGTERM)

    def wait(self, seconds: float) -> int:
        """The exit code."""
        try:
            return self._runtime.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise CommandError(f"still running after {seconds} s:\n{self.log()}") from error

    def wait_until_it_runs(self, seconds: float) -> None:
        """Until the namespaces are made and the entrypoint is there."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                name = Path(f"/proc/{self._process()}/comm").read_text().strip()
                if name == self._image.entrypoint[0]:
                    return
            except (OSError, CommandError):
                pass
            if time.monotonic() > deadline or not self.is_running():
                raise CommandError(f"the entrypoint did not start:\n{self.log()}")
            time.sleep(0.02)

    def _process(self) -> int:
        """The first process of the container, as this machine numbers it."""
        runtime = self._runtime.pid
        children = Path(f"/proc/{runtime}/task/{runtime}/children").read_text().split()
        if not children:
            raise CommandError(f"the container has ended:\n{self.log()}")
        return int(children[0])


def _as_user(root: Path, user: str, env: dict[str, str]) -> list[str]:
    """Begins a command line that runs in the container's root as its user, without any right of root."""
    number, _, group = user.partition(":")
    variables = [f"{name}={value}" for name, value in env.items()]
    identity = ("--reuid", number, "--regid", group or number, "--clear-groups")
    rights = ("--no-new-privs", "--bounding-set=-all", "--inh-caps=-all")
    return ["chroot", str(root), "/usr/bin/setpriv", *identity, *rights, "/usr/bin/env", "-i", *variables]


def _mounts(root: Path, start: Start) -> list[str]:
    at = shlex.quote(str(root))
    lines = [f"mount --bind {at} {at}", f"mount -t proc proc {at}/proc"]
    lines += [f"mkdir -p {at}{place}" for place in start.volumes]
    lines += [
        f"mount --bind {shlex.quote(str(folder))} {at}{place}" for place, folder in start.volumes.items()
    ]
    lines += [f"mount -t tmpfs -o mode=1777 tmp {at}/tmp", f"mount -t tmpfs -o mode=755 dev {at}/dev"]
    lines += [f"touch {at}/dev/{name} && mount --bind /dev/{name} {at}/dev/{name}" for name in _DEVICES]
    lines += [f"ln -s /proc/self/fd {at}/dev/fd", f"mkdir {at}/dev/shm"]
    lines += [f"mount -t tmpfs -o mode=1777,size={start.shm_bytes} shm {at}/dev/shm"]
    lines += [f"mount -o remount,bind,ro {at}", "ip link set lo up"]
    return [*lines, "echo 0 > /proc/sys/net/ipv4/ip_unprivileged_port_start"]
