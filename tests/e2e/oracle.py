"""The oracle: the invariants I1 to I10, checked against the ledgers of clients.

I1 every request ends once, explicitly. I2 the server counts what its clients saw. I3 at rest no KV block is held.
I4 what was completed is what the request gets alone; what was cut short is a beginning of it. I5 a canary in each
prompt appears nowhere else. I6 nothing is left after the end. I7 ready means an answer within seconds. I8 queues are
within bounds. I9 work goes on and is drained. I10 metrics add up.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e.clients import BROKEN, COMPLETE, DRAIN_S, ERROR, LEFT, Load, Record
from e2e.launched import Launched, wait_until

# A machine that compiles and trains at the same time is given more time; the figures that count are measured on a
# quiet one, with 1.
SLACK = float(os.environ.get("PENSTOCK_SLACK", "4"))
READY_ANSWER_S = 2.0


@contextmanager
def two_shards_here(tmp: Path, model: Path, max_concurrent: int) -> Iterator[Launched]:
    """A model in two shards of one machine, to compare those on several machines with."""
    limit = f"--max-concurrent-requests={max_concurrent}"
    with Launched(tmp, f"--model-id={model}", "--dtype=float32", "--num-shard=2", limit) as launched:
        yield launched.wait_until_serving()


class Oracle:
    """Knows what each request gets alone, and what the server has counted until now."""

    def __init__(self, server: Launched, max_concurrent: int) -> None:
        self.server = server
        self._max_concurrent = max_concurrent
        self._alone: dict[str, list[int]] = {}
        self._before = self._counts()

    def learn(self, bodies: Sequence[dict[str, Any]]) -> None:
        """Ask for each request alone, on a server without faults."""
        for body in bodies:
            if json.dumps(body) not in self._alone:
                [record] = Load(self.server, [body]).finish()
                assert record.ends == [COMPLETE], record
                self._alone[json.dumps(body)] = record.tokens
        self.begin()

    def know(self, other: "Oracle") -> None:
        """Take over what another has learned, of a server like this one."""
        self._alone.update(other._alone)

    def begin(self) -> None:
        """Counts from here on are compared with the ledger of the next `check`."""
        self._wait_until_at_rest()
        self._before = self._counts()

    def check(
        self, records: Sequence[Record], may_break: bool = False, expected_errors: Sequence[str] = ()
    ) -> None:
        """All invariants but I6. `may_break`: the router died, so connections broke and its counts began anew."""
        self._check_ends(records, may_break, expected_errors)
        self._check_tokens(records)
        self._check_canaries(records)
        self._wait_until_at_rest()
        self._check_ready()
        self._check_counts(records, is_same_router=not may_break)

    def _check_ends(self, records: Sequence[Record], may_break: bool, expected_errors: Sequence[str]) -> None:
        for record in records:
            assert len(record.ends) == 1, f"I1: {record}"
            assert record.end != BROKEN or may_break, f"I1: a stream broke without a word: {record}"
            if record.end == ERROR:
                assert record.error
                assert record.error["error_type"] in expected_errors, f"I1: {record}"

    def is_right(self, record: Record) -> bool:
        """Whether its tokens are those that it gets alone, or the first of them if it was cut short."""
        alone = self._alone[json.dumps(record.body)]
        return record.tokens == (alone if record.end == COMPLETE else alone[: len(record.tokens)])

    def _check_tokens(self, records: Sequence[Record]) -> None:
        for record in records:
            assert self.is_right(record), f"I4: {record} instead of {self._alone[json.dumps(record.body)]}"

    def _check_canaries(self, records: Sequence[Record]) -> None:
        for record in records:
            assert record.canary not in self.server.stderr, f"I5: {record.canary} is in the log"
            for other in records:
                received = other.text + json.dumps(other.error)
                assert other is record or record.canary not in received, f"I5: {record.canary} is in {other}"

    def _check_ready(self) -> None:
        started = time.monotonic()
        status, reply = self.server.post("/generate", {"inputs": "x", "parameters": {"max_new_tokens": 1}})
        assert status == 200, f"I7: {reply}"
        assert time.monotonic() - started < READY_ANSWER_S * SLACK, "I7: too late"

    def _wait_until_at_rest(self) -> None:
        stats: dict[str, Any] = {}

        def is_at_rest() -> bool:
            status, data = self.server.get("/stats")
            stats.update(json.loads(data))
            load = int(stats["waiting"] + stats["running"])
            assert load <= self._max_concurrent, f"I8: {stats}"
            # I3: what is not in use is free or cached, and may be given up.
            return status == 200 and stats["status"] == "ready" and load + stats["kv_blocks_used"] == 0

        try:
            wait_until(is_at_rest, DRAIN_S)
        except AssertionError as error:
            raise AssertionError(f"I3: not at rest: {error}: {stats}") from None

    def _counts(self) -> Counter[str]:
        lines = self.server.get("/metrics")[1].decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return Counter({name: int(float(value)) for name, value in pairs if "quantile" not in name})

    def _check_counts(self, records: Sequence[Record], is_same_router: bool) -> None:
        counts = self._counts()
        failures = sum(count for name, count in counts.items() if name.startswith("tgi_request_failure"))
        success = counts["tgi_request_success"]
        assert counts["tgi_request_count"] == success + failures, f"I10: {counts}"
        assert counts["tgi_request_duration_count"] == success, f"I10: {counts}"
        if is_same_router:
            ends = Counter(record.end for record in records)
            # The one of `_check_ready` was completed, too; who left may have done so after the last token.
            completed = success - self._before["tgi_request_success"] - 1
            assert 0 <= completed - ends[COMPLETE] <= ends[LEFT], f"I2: {completed}, {ends}"
            errors = counts['tgi_request_failure{err="generation"}']
            assert errors - self._before['tgi_request_failure{err="generation"}'] == ends[ERROR], (
                f"I2: {ends}"
            )
        self._before = counts


def check_nothing_is_left(server: Launched) -> None:
    """I6."""
    wait_until(lambda: not server.children() and not list(server.tmp.glob("penstock-*")), 3 * SLACK)


@contextmanager
def oracle_of_two_shards(
    tmp: Path, model: Path, max_concurrent: int, bodies: Sequence[dict[str, Any]]
) -> Iterator[Oracle]:
    """Knows what two shards of one machine answer."""
    with two_shards_here(tmp, model, max_concurrent) as server:
        oracle = Oracle(server, max_concurrent)
        oracle.learn(bodies)
        yield oracle
