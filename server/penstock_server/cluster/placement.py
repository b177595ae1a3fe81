"""The cluster, and room in it: one placement group for the machines of each replica of a model."""

import logging
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from penstock_server.base.errors import StartError
from penstock_server.cluster.flags import Settings

logger = logging.getLogger(__name__)

_POLL_S = 0.5
_PROGRESS_S = 10.0
# How long the head of a cluster may take to accept a connection.
_ANSWER_S = 10.0
_NUM_PORTS = 65536


class Room(NamedTuple):
    """The machines and shards that the replicas of the model need."""

    num_replicas: int
    # Machines of each replica.
    num_nodes: int
    # Shards of each machine.
    num_shards: int
    on_gpus: bool

    @property
    def bundle(self) -> dict[str, float]:
        """The resources of one machine. On GPUs a processor is left for the launcher."""
        return {"GPU": self.num_shards, "CPU": 1} if self.on_gpus else {"CPU": self.num_shards}

    def __str__(self) -> str:
        where = ", every one on a machine of its own" if self.num_nodes > 1 else ""
        of_one = f"{self.num_nodes} node(s) with {_words(self.bundle)} each{where}"
        return of_one if self.num_replicas == 1 else f"{of_one}, for each of {self.num_replicas} replicas"


def connect(address: str | None) -> str:
    """Join the cluster as a driver; returns the address of this machine there."""
    if address is not None and address != "auto":
        _check(address)
    try:
        ray.init(
            address=address or "auto",
            log_to_driver=False,
            configure_logging=False,
            logging_level=logging.WARNING,
        )
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        what = f"--ray-address {address}" if address else "the Ray cluster of this machine"
        why = _reason(error)
        raise StartError(
            f"{what} cannot be joined: {why}; `ray start` makes a machine part of one"
        ) from error
    return str(ray.util.get_node_ip_address())


def _check(address: str) -> None:
    """Ray itself would try for minutes."""
    if address.startswith("ray://"):
        raise StartError(
            f"--ray-address {address} is that of a Ray client; run the launcher on a machine of the cluster, "
            "and name HOST:PORT"
        )
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and int(port) < _NUM_PORTS):
        raise StartError(f"--ray-address {address!r} is not HOST:PORT, the address of a Ray cluster")
    try:
        socket.create_connection((host, int(port)), _ANSWER_S).close()
    except OSError as error:
        raise StartError(f"--ray-address {address}: nothing answers there: {error}") from error


def _reason(error: Exception) -> str:
    """Its first line; of one that quotes the traceback of another the last, which says what that was."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1] if "Traceback" in str(error) else lines[0]


def choose_room(settings: Settings) -> Room:
    """The room that the settings ask for; the rest follows from the machines that are there."""
    gpus = sorted((int(it["Resources"].get("GPU", 0)) for it in _machines()), reverse=True)
    on_gpus = settings.device == "cuda" or (settings.device == "auto" and any(gpus))
    # The number of GPUs that each of the `num_nodes` largest machines has.
    all_of_one = gpus[settings.num_nodes - 1] if on_gpus and len(gpus) >= settings.num_nodes else 1
    of_replica = settings.num_nodes // settings.num_replicas
    return Room(settings.num_replicas, of_replica, settings.num_shards or max(all_of_one, 1), on_gpus)


def place(room: Room, timeout_s: float, is_stopped: Callable[[], bool]) -> list[PlacementGroup]:
    """A placement group for each replica, when there is room for one of them; none if they are not wanted any more.

    The others get theirs when there is room for them, and what is started there waits for it.
    """
    strategy = "STRICT_SPREAD" if room.num_nodes > 1 else "PACK"
    groups = [
        placement_group([room.bundle] * room.num_nodes, strategy=strategy) for _ in range(room.num_replicas)
    ]
    started = told = time.monotonic()
    while not _has_room(groups):
        now = time.monotonic()
        if is_stopped():
            remove(groups)
            return []
        if now - started >= timeout_s:
            there = describe_machines()
            remove(groups)
            raise StartError(
                f"the Ray cluster had no room within {timeout_s:g} s: {room} asked for, but there are {there} "
                "(--nnodes, --num-shard, --ray-placement-timeout)"
            )
        if now - told >= _PROGRESS_S:
            told = now
            logger.info(
                "waiting for room in the Ray cluster: %s asked for, %s there", room, describe_machines()
            )
    return groups


def _has_room(groups: list[PlacementGroup]) -> bool:
    """Whether any of them is placed; asks for a moment."""
    return any(group.wait(_POLL_S / len(groups)) for group in groups)


def remove(groups: list[PlacementGroup]) -> None:
    """Give the room back, with all that is there."""
    for group in groups:
        remove_placement_group(group)


def describe_machines() -> str:
    """For people: what the machines of the cluster have, and what is free of it."""
    shown = [f"{it['NodeManagerAddress']} with {_words(it['Resources'])}" for it in _machines()]
    return f"{', '.join(shown) or 'no machines'}; free in all: {_words(ray.available_resources())}"


def _machines() -> list[dict[str, Any]]:
    return [it for it in ray.nodes() if it["Alive"]]


def _words(resources: dict[str, float]) -> str:
    return (
        " and ".join(f"{resources.get(kind, 0):g} {kind}" for kind in ("GPU", "CPU") if kind in resources)
        or "nothing"
    )
