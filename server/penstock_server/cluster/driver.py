"""The driver: room in the cluster, the launcher of node 0, an actor for each other node, until the server ends."""

import logging
import os
import secrets
import signal
import subprocess
import time
from contextlib import suppress

import ray
from ray.actor import ActorHandle
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from penstock_server.base.errors import StartError
from penstock_server.cluster.flags import Settings
from penstock_server.cluster.launcher import start_launcher
from penstock_server.cluster.node_actor import NodeActor
from penstock_server.cluster.nodes import Node
from penstock_server.cluster.placement import Room, choose_room, connect, place, remove
from penstock_server.cluster.signals import STOP_SIGNALS

logger = logging.getLogger(__name__)

_POLL_S = 0.2
# How long launchers may take to say their last words.
_FAREWELL_S = 5.0
_FAILED = 1


class Driver:
    """Serves one model from a Ray cluster."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._secret = _read_secret(settings)
        self._router: subprocess.Popen[bytes] | None = None
        self._is_stopped = False

    def run(self) -> int:
        """Until the server ends; returns the exit code of the launcher of node 0."""
        settings = self._settings
        try:
            address = connect(settings.ray_address)
        except SystemExit:
            # Ray's own handler of SIGTERM, or ours: nothing was placed yet.
            return 0
        for number in (*STOP_SIGNALS, signal.SIGUSR1):
            signal.signal(number, self._on_signal)
        room = choose_room(settings)
        groups = place(room, settings.placement_timeout_s, lambda: self._is_stopped)
        if not groups:
            return 0
        logger.info("the Ray cluster has room for %s", room)
        words = self._words(room, address)
        self._router = self._start_router(words)
        bundles = [(group, bundle) for group in groups for bundle in range(room.num_nodes)]
        nodes = [self._node(number, words, room, *bundle) for number, bundle in enumerate(bundles, start=1)]
        try:
            return self._serve(self._router, nodes)
        finally:
            for node in nodes:
                node.end()
            remove(groups)
            ray.shutdown()

    def _on_signal(self, number: int, _frame: object) -> None:
        self._is_stopped = self._is_stopped or number != signal.SIGUSR1
        if self._router is not None:
            self._router.send_signal(number)

    def _words(self, room: Room, address: str) -> list[str]:
        """The flags that all launchers get behind the user's flags."""
        return [
            "--executor=local",
            # The machine of this driver is node 0, without shards.
            f"--nnodes={room.num_replicas * room.num_nodes + 1}",
            "--router-apart",
            f"--num-shard={room.num_shards}",
            f"--device={'cuda' if room.on_gpus else 'cpu'}",
            f"--master-addr={address}",
            f"--master-port={self._settings.master_port}",
        ]

    def _start_router(self, words: list[str]) -> subprocess.Popen[bytes]:
        router = start_launcher(
            [*self._settings.router_words, *words, "--node-rank=0"], self._secret, os.environ
        )
        # The signal came before there was anything to pass it on to.
        if self._is_stopped:
            router.send_signal(signal.SIGTERM)
        return router

    def _node(self, number: int, words: list[str], room: Room, group: PlacementGroup, bundle: int) -> Node:
        variables = {name: os.environ[name] for name in self._settings.variables}
        all_words = [*self._settings.node_words, *words, f"--node-rank={number}"]
        actor = ray.remote(NodeActor).options(
            num_cpus=room.bundle["CPU"],
            num_gpus=room.bundle.get("GPU", 0),
            max_restarts=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, bundle),
        )

        def start() -> ActorHandle:
            return actor.remote(all_words, self._secret, variables)

        return Node(number, start, self._settings.json_output)

    def _serve(self, router: subprocess.Popen[bytes], nodes: list[Node]) -> int:
        try:
            while router.poll() is None:
                for node in nodes:
                    node.tend()
                _hear_one(nodes, _POLL_S)
        except StartError:
            router.send_signal(signal.SIGTERM)
            router.wait()
            raise
        _hear_the_rest(nodes)
        code = router.wait()
        if code < 0:
            logger.error("the launcher of node 0 was ended by %s", signal.Signals(-code).name)
        return code if code >= 0 else _FAILED


def _read_secret(settings: Settings) -> str:
    if settings.secret_file is None:
        return secrets.token_hex(32)
    try:
        return settings.secret_file.read_text().strip()
    except (OSError, ValueError) as error:
        raise StartError(f"--replica-secret-file {settings.secret_file}: {error}") from error


def _hear_one(nodes: list[Node], timeout_s: float) -> None:
    replies = {node.reply: node for node in nodes if node.reply is not None}
    if not replies:
        time.sleep(timeout_s)
        return
    ready, _ = ray.wait(list(replies), timeout=timeout_s)
    for reply in ready:
        replies[reply].hear()


def _hear_the_rest(nodes: list[Node]) -> None:
    deadline = time.monotonic() + _FAREWELL_S
    with suppress(ray.exceptions.RayError):
        while any(node.reply is not None for node in nodes) and time.monotonic() < deadline:
            _hear_one(nodes, _POLL_S)
