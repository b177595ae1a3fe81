"""Clients that keep a ledger of what they were told: a load of requests at once, or traffic that does not end."""

import http.client
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import Any, Self

from e2e.launched import Server, events, wait_until

DRAIN_S = 120.0
# Who was refused, or lost the router, tries again soon.
_PAUSE_S = 0.1

# BROKEN: the connection broke so that the client saw it. SILENT: nothing came any more, or an end without a last word.
COMPLETE, ERROR, LEFT, BROKEN, SILENT = "complete", "error", "left", "broken", "silent"


@dataclass
class Record:
    """One request and all that its client saw."""

    body: dict[str, Any]
    leave_after: int = 0
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    error: dict[str, Any] | None = None
    ends: list[str] = field(default_factory=list)
    started_at: float = 0.0
    ended_at: float = 0.0

    @property
    def end(self) -> str | None:
        return self.ends[0] if self.ends else None

    @property
    def canary(self) -> str:
        return str(self.body["inputs"]).split(" ", 1)[0]

    def run(self, server: Server) -> None:
        """Ask, and read to the end, whatever it is."""
        self.started_at = time.monotonic()
        try:
            self._read(server)
        except TimeoutError:
            self.ends.append(SILENT)
        except (OSError, http.client.HTTPException):
            self.ends.append(BROKEN)
        self.ended_at = time.monotonic()

    def _read(self, server: Server) -> None:
        with server.request("POST", "/generate_stream", self.body, DRAIN_S) as response:
            if response.status != 200:
                self._fail(json.loads(response.read()))
                return
            for data in events(response):
                self._take(json.loads(data))
                if self.leave_after and len(self.tokens) >= self.leave_after:
                    self.ends.append(LEFT)
                    return
        if not self.ends:
            self.ends.append(SILENT)

    def _fail(self, error: dict[str, Any]) -> None:
        self.error = error
        self.ends.append(ERROR)

    def _take(self, event: dict[str, Any]) -> None:
        if "error" in event:
            self._fail(event)
            return
        self.tokens.append(event["token"]["id"])
        if event["generated_text"] is not None:
            self.text = event["generated_text"]
            self.ends.append(COMPLETE)


class Load:
    """Requests that run at the same time, each on a connection of its own."""

    def __init__(self, server: Server, bodies: Sequence[dict[str, Any]], leave_after: int = 0) -> None:
        self.records = [Record(body, leave_after) for body in bodies]
        self._threads = [threading.Thread(target=record.run, args=(server,)) for record in self.records]
        for thread in self._threads:
            thread.start()

    @property
    def num_tokens(self) -> int:
        return sum(len(record.tokens) for record in self.records)

    def wait_for_tokens(self, count: int) -> None:
        wait_until(lambda: self.num_tokens >= count or not self.is_running(), DRAIN_S)

    def wait_for_each(self, count: int) -> None:
        """Until each has so many tokens, or has ended."""
        wait_until(lambda: all(len(it.tokens) >= count or it.ends for it in self.records), DRAIN_S)

    def ends(self) -> list[str]:
        """How those ended that have."""
        return [end for record in self.records for end in record.ends]

    def is_running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def finish(self) -> list[Record]:
        """Every client's record, when all have ended (I9)."""
        _join(self._threads)
        assert not self.is_running(), f"I9: not drained after {DRAIN_S} s: {self.records}"
        return self.records


class Traffic:
    """Clients that ask again and again while the context is open, each what `choose` draws with dice of its own."""

    def __init__(self, server: Server, num_clients: int, choose: Callable[[Random], Record]) -> None:
        self._server = server
        self._choose = choose
        self._ending = threading.Event()
        # The records of all requests, in the order in which they ended.
        self.records: list[Record] = []
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(num_clients)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        _join(self._threads)

    def _run(self, number: int) -> None:
        dice = Random(f"client {number}")
        while not self._ending.is_set():
            record = self._choose(dice)
            record.run(self._server)
            self.records.append(record)
            if record.end not in (COMPLETE, LEFT):
                self._ending.wait(_PAUSE_S)


def _join(threads: Sequence[threading.Thread]) -> None:
    deadline = time.monotonic() + DRAIN_S + 1
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def make_body(number: int, max_new_tokens: int, seed: int | None = None) -> dict[str, Any]:
    """A request with a canary of its own, for so many tokens; drawn at random with a seed, else greedy."""
    sampling = {} if seed is None else {"do_sample": True, "temperature": 0.8, "seed": seed}
    return {
        "inputs": f"canary-{number:06x} once upon a time",
        "parameters": {"max_new_tokens": max_new_tokens, "ignore_eos": True, **sampling},
    }
