"""A machine of the model as the driver sees it: an actor, again and again, until the server ends."""

import json
import logging
import sys
import time
from collections.abc import Callable

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError

from penstock_server.base.errors import StartError

logger = logging.getLogger(__name__)

# Before it is placed again. When the server ends, so do the launchers of all nodes, and that of node 0 within a second.
_PAUSE_S = 2.0
# A launcher that ends so early, so often in a row, will not do better.
_EARLY_S = 60.0
_MAX_EARLY = 3
_PROGRESS_S = 10.0


class Node:
    """One machine. `place` makes a new actor on its bundle, which waits until there is a machine for it."""

    def __init__(self, number: int, place: Callable[[], ActorHandle], json_output: bool) -> None:
        self.number = number
        self._place = place
        self._json_output = json_output
        self._actor: ActorHandle | None = None
        # The next reply of the actor; None while there is no actor.
        self.reply: ray.ObjectRef | None = None
        self._placed_at = 0.0
        self._due_at = 0.0
        # When to say that it still waits for room.
        self._tell_at: float | None = None
        # How the last one ended, and how many in a row ended soon.
        self._ended: str | None = None
        self._num_early = 0

    def tend(self) -> None:
        """Start what has to be started, and say what takes long."""
        now = time.monotonic()
        if self.reply is None and now >= self._due_at:
            self._say_why_again()
            self._actor = self._place()
            self.reply = self._actor.follow.remote()
            self._placed_at, self._tell_at = now, now + _PROGRESS_S
        elif self._tell_at is not None and now >= self._tell_at:
            logger.info("node %d waits for room in the Ray cluster", self.number)
            self._tell_at = now + _PROGRESS_S

    def _say_why_again(self) -> None:
        if self._num_early >= _MAX_EARLY:
            raise StartError(
                f"{self._ended}, {_MAX_EARLY} times in a row soon after its start; its lines say why"
            )
        if self._ended is not None:
            logger.error("%s; it is placed again", self._ended)

    def hear(self) -> None:
        """Take in its reply, which is there."""
        was_placed, self._tell_at = self._tell_at is None, None
        try:
            lines, code = ray.get(self.reply)
        except RayError as error:
            why = str(error).strip().split("\n", 1)[0]
            # One that never said anything could not be started.
            self._over(f"node {self.number} is lost: {why}", is_early=not was_placed)
            return
        for line in lines:
            self._pass_on(line)
        if code is not None:
            is_early = time.monotonic() - self._placed_at < _EARLY_S
            self._over(f"the launcher of node {self.number} ended with exit code {code}", is_early)
        elif self._actor is not None:
            self.reply = self._actor.follow.remote()

    def _over(self, how: str, is_early: bool) -> None:
        self._ended = how
        self._num_early = self._num_early + 1 if is_early else 0
        self.end()
        self._due_at = time.monotonic() + _PAUSE_S

    def end(self) -> None:
        """End it with all of its own."""
        if self._actor is not None:
            ray.kill(self._actor)
        self._actor, self.reply = None, None

    def _pass_on(self, line: str) -> None:
        shown = _with_node(line, self.number) if self._json_output else f"node {self.number} | {line}"
        print(shown, file=sys.stderr, flush=True)


def _with_node(line: str, number: int) -> str:
    try:
        said = json.loads(line)
    except ValueError:
        said = {"message": line}
    return json.dumps(
        {"node": number, **said} if isinstance(said, dict) else {"node": number, "message": line}
    )
