"""New weights behind the proxy, one server after the other, while clients ask on and on: no request notices."""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random

import pytest
from e2e import faults
from e2e.clients import COMPLETE, Load, Record, Traffic, make_body
from e2e.launched import Launched, wait_until
from e2e.models import make_model
from e2e.oracle import SLACK
from e2e.proxied import Proxied

pytestmark = pytest.mark.timeout(300)

BODIES = [make_body(number, 40) for number in range(6)]

# Starts a server of a model at a port; 0 is any.
Start = Callable[[Path, int], Launched]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A function that starts servers in folders of their own; those that are left after the test are killed."""
    with ExitStack() as stack:

        def begin(model: Path, port: int) -> Launched:
            folder = tmp_path / str(len(list(tmp_path.iterdir())))
            folder.mkdir()
            flags = (f"--model-id={model}", "--served-model-name=m", "--dtype=float32", f"--port={port}")
            return stack.enter_context(Launched(folder, *flags))

        yield begin


def _choose(dice: Random) -> Record:
    return Record(dice.choice(BODIES))


def _replies(server: Launched) -> dict[str, list[int]]:
    """The tokens of each request where nothing else happens."""
    return {record.canary: record.tokens for record in Load(server, BODIES).finish()}


def _update(server: Launched, model: Path, start: Start) -> Launched:
    """End a server as a supervisor does, and start the next in its place."""
    assert server.address
    port = server.address[1]
    server.process.send_signal(signal.SIGTERM)
    code, stderr = server.end()
    assert code == 0, stderr
    return start(model, port).wait_until_serving()


def test_an_update_one_by_one_drops_and_mixes_nothing(
    model: Path, start: Start, tmp_path_factory: pytest.TempPathFactory
) -> None:
    new_model = make_model(tmp_path_factory.mktemp("new"), hidden_act="gelu")
    servers = [server.wait_until_serving() for server in (start(model, 0), start(model, 0))]
    before = _replies(servers[0])
    with Proxied(servers) as proxied:
        wait_until(lambda: all(map(proxied.is_up, servers)), faults.RESTART_S * SLACK)
        with Traffic(proxied, 4, _choose) as traffic:
            wait_until(lambda: len(traffic.records) > 4, faults.RESTART_S * SLACK)
            for number, server in enumerate(servers):
                servers[number] = _update(server, new_model, start)
                wait_until(partial(proxied.is_up, servers[number]), faults.RESTART_S * SLACK)
            num_updated = len(traffic.records)
            wait_until(lambda: len(traffic.records) > num_updated + 8, faults.RESTART_S * SLACK)
        after = _replies(servers[0])
        assert proxied.end() == 0
    assert all(before[canary] != after[canary] for canary in before)
    assert [record for record in traffic.records if record.end != COMPLETE] == []
    for record in traffic.records:
        assert record.tokens in (before[record.canary], after[record.canary])
    # Four clients may each have asked before the last server was updated.
    assert all(record.tokens == after[record.canary] for record in traffic.records[num_updated + 4 :])
