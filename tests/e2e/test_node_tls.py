"""Machines that show each other certificates: the tokens of one machine, and nobody without one of their authority."""

import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import NODE_NAME, Authority, Issued
from e2e import faults
from e2e.clients import Load, make_body
from e2e.faults import MAX_CONCURRENT
from e2e.hosts import Host
from e2e.launched import Launched, wait_until
from e2e.oracle import SLACK, Oracle, oracle_of_two_shards
from e2e.test_nodes import PORT, Cluster
from e2e.test_nodes import hosts as hosts

pytestmark = pytest.mark.timeout(400)

BODIES = [make_body(number, 60, number if number % 2 else None) for number in range(4)]
PREFIX = "--replica-"


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Issued:
    return Authority(tmp_path_factory.mktemp("tls") / "ours").issue()


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Issued:
    """The files of another authority, with the same name."""
    return Authority(tmp_path_factory.mktemp("tls") / "theirs").issue()


@pytest.fixture(scope="module")
def cluster(
    hosts: list[Host], ours: Issued, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    cluster = Cluster(hosts, tmp_path_factory.mktemp("cluster"), model, *ours.flags(PREFIX))
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def oracle(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    """Knows what one machine answers."""
    one = tmp_path_factory.mktemp("one")
    with oracle_of_two_shards(one, model, MAX_CONCURRENT, BODIES) as oracle:
        yield oracle


def test_they_give_the_tokens_of_one_machine_also_when_one_was_killed(
    cluster: Cluster, oracle: Oracle
) -> None:
    with faults.held_load(cluster.server, BODIES) as load:
        cluster.hosts[1].kill()
        wait_until(lambda: "node 1 is lost" in cluster.server.stderr, 60 * SLACK)
        cluster.launch_again(1)
    assert all(oracle.is_right(record) for record in load.finish())
    assert all(oracle.is_right(record) for record in Load(cluster.server, BODIES).finish())


def test_who_shows_no_certificate_is_told_nothing(cluster: Cluster, ours: Issued, theirs: Issued) -> None:
    ports = [(cluster.hosts[0].address, PORT), (cluster.hosts[1].address, PORT + 2)]
    for address in ports:
        with socket.create_connection(address) as plain:
            plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            told = b""
            while part := plain.recv(4096):
                told += part
        # An alert of TLS at most, and no challenge.
        assert len(told) <= 7
        for shown in (None, theirs):
            context = ssl.create_default_context(cafile=ours.ca)
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            if shown:
                context.load_cert_chain(shown.cert, shown.key)
            with socket.create_connection(address) as plain, pytest.raises((ssl.SSLError, OSError)):
                context.wrap_socket(plain, server_hostname=NODE_NAME).recv(1)


@pytest.mark.parametrize("who", ["of another authority", "without one"])
def test_a_node_that_shows_no_certificate_of_theirs_is_not_let_in(
    cluster: Cluster, theirs: Issued, who: str, tmp_path: Path
) -> None:
    flags = [flag for flag in cluster.flags(1) if not re.match(f"{PREFIX}tls", flag)]
    flags += theirs.flags(PREFIX) if who == "of another authority" else []
    before = len(cluster.server.stderr)
    with Launched(tmp_path, *flags, under=cluster.hosts[1].under) as stranger:
        asks = "it may ask for a certificate, and this launcher has none: give it --replica-tls-cert"
        why = "no TLS by --replica-tls-cert" if "another" in who else asks
        wait_until(lambda: why in stranger.stderr, 60 * SLACK)
        wait_until(lambda: "on --master-port:" in cluster.server.stderr[before:], 60 * SLACK)
    assert faults.is_ready(cluster.server)
