"""Random faults at random moments under random load, by seed; a failing seed prints the line that replays it.

`PENSTOCK_CHAOS_FIRST=seed` and `PENSTOCK_CHAOS_SEEDS=n` choose what runs: a few here, many by `make chaos`.
"""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from e2e import faults
from e2e.clients import Load, Record, make_body
from e2e.faults import MAX_CONCURRENT
from e2e.launched import Launched
from e2e.oracle import Oracle, check_nothing_is_left

FIRST = int(os.environ.get("PENSTOCK_CHAOS_FIRST", "0"))
NUM_SEEDS = int(os.environ.get("PENSTOCK_CHAOS_SEEDS", "5"))
# Few, so that what each gets alone is asked for once.
BODIES = [make_body(1000 + number, 20 + 20 * number, number or None) for number in range(10)]


@pytest.mark.timeout(3600)
def test_every_request_ends_once_with_its_own_tokens_whatever_happens(model: Path, tmp_path: Path) -> None:
    with Launched(tmp_path, *faults.flags(tmp_path, model)) as server:
        oracle = Oracle(server.wait_until_serving(), MAX_CONCURRENT)
        oracle.learn(BODIES)
        for seed in range(FIRST, FIRST + NUM_SEEDS):
            _play(seed, server, oracle)
        server.process.terminate()
        assert server.end()[0] == 0
        check_nothing_is_left(server)


def _play(seed: int, server: Launched, oracle: Oracle) -> None:
    dice = Random(f"chaos {seed}")
    chosen = dice.choices(sorted(faults.RANDOM), k=dice.choice((1, 1, 2)))
    moments = [dice.uniform(0, 1.5) for _ in chosen]
    bodies = dice.choices(BODIES, k=dice.randint(1, 24))
    replay = f"PENSTOCK_CHAOS_FIRST={seed} PENSTOCK_CHAOS_SEEDS=1 python -m pytest tests/e2e/test_chaos.py"
    sys.stdout.write(f"seed {seed}: {chosen} at {moments} among {len(bodies)}; replay: {replay}\n")
    try:
        oracle.begin()
        load = Load(server, bodies, leave_after=dice.choice((0, 0, 0, 5)))
        for name, moment in zip(chosen, moments, strict=True):
            time.sleep(moment)
            faults.RANDOM[name](server)
        records = [*load.finish(), *_settle(server)]
        # A fault that hits a trial makes an innocent a suspect: that is an explicit end, too.
        errors = ["generation"] if len(chosen) > 1 else []
        oracle.check(records, may_break=any("router" in name for name in chosen), expected_errors=errors)
    except AssertionError as error:
        raise AssertionError(f"{error}\nreplay: {replay}\n{server.stderr[-4000:]}") from error


def _settle(server: Launched) -> Iterator[Record]:
    """Orders that nobody carried out yet are carried out on requests of their own."""
    deadline = time.monotonic() + faults.RESTART_S
    while list(server.tmp.glob("order-*")) and time.monotonic() < deadline:
        yield from Load(server, BODIES[:1]).finish()
    faults.wait_until_ready(server)
