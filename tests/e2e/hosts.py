"""Machines of one network: network namespaces, joined by a bridge. Each can be cut off, stopped and killed."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from addresses_lock import addresses_change
from e2e.sockets import addresses


def can_be_made() -> bool:
    """Whether this user may make network namespaces and join them."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("nsenter") is None:
        return False
    name = f"pp{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    bridged = made and _may("link", "add", name, "type", "bridge")
    _may("link", "del", name)
    _may("netns", "del", name)
    return bridged


def _may(*command: str) -> bool:
    return subprocess.run(["ip", *command], capture_output=True, check=False).returncode == 0


def _ip(*command: str) -> None:
    subprocess.run(["ip", *command], check=True, capture_output=True)


def _without_own_address(interface: str) -> None:
    """It gets none when it goes up, and loses none when it goes down, see `addresses_lock`."""
    _ip("link", "set", interface, "addrgenmode", "none")


class Host:
    """One machine."""

    def __init__(self, network: str, number: int, bridge: str) -> None:
        self.name = f"{bridge}n{number}"
        self.address = f"{network}.{number + 1}"
        self._cable = f"{bridge}c{number}"
        _ip("netns", "add", self.name)
        _ip("link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _without_own_address(self._cable)
        _ip("link", "set", self._cable, "master", bridge, "up")
        _ip("-n", self.name, "link", "set", "lo", "up")
        _ip("-n", self.name, "addr", "add", f"{self.address}/24", "dev", "eth0")
        _ip("-n", self.name, "link", "set", "eth0", "up")

    @property
    def under(self) -> tuple[str, ...]:
        """A command that runs another on this machine."""
        return ("nsenter", f"--net=/run/netns/{self.name}")

    def pids(self) -> list[int]:
        found = subprocess.run(["ip", "netns", "pids", self.name], check=True, capture_output=True, text=True)
        return [int(pid) for pid in found.stdout.split()]

    def signal(self, number: signal.Signals) -> None:
        """To all of its processes."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """Kills all of its processes, as when its power fails, except that the other hosts are told."""
        while self.pids():
            self.signal(signal.SIGKILL)

    def cut(self) -> None:
        """Nothing reaches it, and nobody is told."""
        _ip("link", "set", self._cable, "down")

    def heal(self) -> None:
        _ip("link", "set", self._cable, "up")

    def listening(self) -> set[tuple[str, int]]:
        """Addresses and ports that its processes listen on."""
        table = Path("/proc/net/tcp")
        lines = subprocess.run([*self.under, "cat", table], check=True, capture_output=True, text=True).stdout
        return set(addresses(lines).values())

    def remove(self) -> None:
        with suppress(subprocess.CalledProcessError):
            self.kill()
        _may("netns", "del", self.name)
        _may("link", "del", self._cable)


@contextmanager
def network(num_hosts: int) -> Iterator[list[Host]]:
    """Machines that reach each other, and that this one reaches."""
    bridge, subnet = f"pn{os.getpid()}", f"10.213.{os.getpid() % 250}"
    hosts: list[Host] = []
    _ip("link", "add", bridge, "type", "bridge")
    try:
        _without_own_address(bridge)
        _ip("link", "set", bridge, "up")
        with addresses_change():
            _ip("addr", "add", f"{subnet}.254/24", "dev", bridge)
        for number in range(num_hosts):
            hosts.append(Host(subnet, number, bridge))
        yield hosts
    finally:
        for host in hosts:
            host.remove()
        with addresses_change():
            _may("link", "del", bridge)
