"""The machines of the tests."""

import subprocess

import pytest
from e2e.hosts import can_be_made, network


def _addresses() -> set[tuple[str, ...]]:
    """Each interface of this machine that has addresses, with these."""
    shown = subprocess.run(["ip", "-br", "addr"], check=True, capture_output=True, text=True).stdout
    return {(name, *given) for name, _state, *given in map(str.split, shown.splitlines()) if given}


@pytest.mark.skipif(not can_be_made(), reason="needs root, and ip and nsenter of Linux")
def test_what_is_done_to_machines_changes_no_address_of_this_one() -> None:
    """Else a browser of other tests would drop what it is loading, see `addresses_lock`."""
    with network(1) as [host]:
        before = _addresses()
        host.cut()
        assert _addresses() == before
        host.heal()
        assert _addresses() == before
