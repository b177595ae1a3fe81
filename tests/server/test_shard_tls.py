"""A shard on TCP with certificates: who shows none of the authority is not heard, whatever secret it knows."""

import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from certificates import NODE_NAME, Authority, Issued
from penstock_server.pb import engine_pb2 as pb
from penstock_server.pb import engine_pb2_grpc
from shard_client import DEADLINE_S, ENDPOINTS, Shard, listening_ports, run_shard, running_shards

SECRET = "a-secret-of-this-test"
METADATA = [("penstock-secret", SECRET)]
# The time for which a connection is refused again and again.
REFUSED_S = 3.0


class Listening(NamedTuple):
    shard: Shard
    port: int
    # The files of this shard's authority, and of another authority with the same names.
    ours: Issued
    theirs: Issued


@pytest.fixture(scope="module")
def model(saved_model: Callable[..., Any]) -> Any:
    return saved_model()


@pytest.fixture(scope="module", params=ENDPOINTS)
def listening(
    request: pytest.FixtureRequest, model: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Listening]:
    folder = tmp_path_factory.mktemp("tls")
    ours, theirs = (Authority(folder / name).issue() for name in ("ours", "theirs"))
    secret = folder / "secret"
    secret.write_text(SECRET)
    flags = [f"--endpoint={request.param}", "--listen=tcp:127.0.0.1:0", f"--secret-file={secret}"]
    with running_shards(model.folder, folder, flags=[*flags, *ours.flags()]) as [shard]:
        [port] = listening_ports(shard)
        assert "asks for a secret and a certificate" in shard.read_log()
        yield Listening(shard, port, ours, theirs)


def _describe(listening: Listening, credentials: grpc.ChannelCredentials | None, timeout: float) -> Any:
    name = (("grpc.ssl_target_name_override", NODE_NAME),)
    address = f"127.0.0.1:{listening.port}"
    channel = (
        grpc.secure_channel(address, credentials, name) if credentials else grpc.insecure_channel(address)
    )
    with channel:
        stub: Any = engine_pb2_grpc.EngineStub(channel)  # type: ignore[no-untyped-call]
        return stub.Describe(pb.DescribeRequest(), timeout=timeout, metadata=METADATA)


def _credentials(shown: Issued | None, trusted: Issued) -> grpc.ChannelCredentials:
    key, cert = (shown.key.read_bytes(), shown.cert.read_bytes()) if shown else (None, None)
    return grpc.ssl_channel_credentials(trusted.ca.read_bytes(), key, cert)


def test_with_a_certificate_of_the_authority_it_answers(listening: Listening) -> None:
    credentials = _credentials(listening.ours, listening.ours)
    assert _describe(listening, credentials, DEADLINE_S) == listening.shard.describe()


def test_it_still_asks_for_the_secret(listening: Listening) -> None:
    name = (("grpc.ssl_target_name_override", NODE_NAME),)
    credentials = _credentials(listening.ours, listening.ours)
    with grpc.secure_channel(f"127.0.0.1:{listening.port}", credentials, name) as channel:
        stub: Any = engine_pb2_grpc.EngineStub(channel)  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.RpcError) as refused:
            stub.Describe(pb.DescribeRequest(), timeout=DEADLINE_S)
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("who", ["in plain text", "without a certificate", "with one of another authority"])
def test_who_shows_no_certificate_of_the_authority_is_not_heard(listening: Listening, who: str) -> None:
    shown = listening.theirs if who.endswith("authority") else None
    credentials = None if who == "in plain text" else _credentials(shown, listening.ours)
    with pytest.raises(grpc.RpcError) as refused:
        _describe(listening, credentials, REFUSED_S)
    assert refused.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    assert _describe(listening, _credentials(listening.ours, listening.ours), DEADLINE_S), "others are"


def test_the_handshake_itself_refuses_who_shows_none(listening: Listening) -> None:
    """Before any message: with TLS 1.2 the client is told within its handshake."""
    for shown in (None, listening.theirs):
        context = ssl.create_default_context(cafile=listening.ours.ca)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["h2"])
        if shown:
            context.load_cert_chain(shown.cert, shown.key)
        with (
            socket.create_connection(("127.0.0.1", listening.port), DEADLINE_S) as plain,
            pytest.raises((ssl.SSLError, ConnectionResetError)),
            context.wrap_socket(plain, server_hostname=NODE_NAME) as wire,
        ):
            wire.recv(1)


def test_what_it_shows_is_of_the_authority_and_has_the_name(listening: Listening) -> None:
    for trusted, name in ((listening.theirs, NODE_NAME), (listening.ours, "localhost")):
        context = ssl.create_default_context(cafile=trusted.ca)
        context.load_cert_chain(listening.ours.cert, listening.ours.key)
        with (
            socket.create_connection(("127.0.0.1", listening.port), DEADLINE_S) as plain,
            pytest.raises(ssl.SSLCertVerificationError),
        ):
            context.wrap_socket(plain, server_hostname=name)


def test_files_that_are_of_no_use_are_named_at_the_start(model: Any, tmp_path: Path) -> None:
    ours, theirs = (Authority(tmp_path / name).issue() for name in ("ours", "theirs"))
    text, missing = tmp_path / "text", tmp_path / "missing"
    text.write_text("no PEM\n")
    socket_path = tmp_path / "s.sock"
    listen = ("--listen", "tcp:127.0.0.1:0")
    flags = ("--model-path", model.folder, "--uds-path", socket_path, "--device", "cpu")
    for more, said in (
        ((*listen, f"--tls-cert={ours.cert}"), "--tls-cert, --tls-key and --tls-ca need each other"),
        ((*listen, *ours.flags()[:2]), "--tls-cert, --tls-key and --tls-ca need each other"),
        (ours.flags(), "--tls-cert has no effect without --listen"),
        ((*listen, *ours._replace(cert=missing).flags()), f"--tls-cert: {missing} cannot be read"),
        ((*listen, *ours._replace(key=missing).flags()), f"--tls-key: {missing} cannot be read"),
        ((*listen, *ours._replace(ca=missing).flags()), f"--tls-ca: {missing} cannot be read"),
        ((*listen, *ours._replace(ca=text).flags()), f"--tls-ca: {text} holds no certificate"),
        ((*listen, *ours._replace(cert=text).flags()), f"--tls-cert {text} and --tls-key {ours.key}"),
        ((*listen, *ours._replace(key=text).flags()), f"--tls-cert {ours.cert} and --tls-key {text}"),
        ((*listen, *ours._replace(key=theirs.key).flags()), f"and --tls-key {theirs.key} are no certificate"),
    ):
        ended = run_shard(*flags, *more)
        assert ended.returncode == 2, more
        assert said in ended.stderr
        assert not socket_path.exists()
