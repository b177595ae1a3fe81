"""Blocks that go from one shard to another: tokens behind them are those of one shard, and refusals have a reason."""

import socket
import ssl
import stat
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import oracle
import pytest
from certificates import Authority, Issued
from driver import make_engine
from penstock_server.base.errors import StartError, TransferFailed
from penstock_server.base.mutual_tls import MutualTls
from penstock_server.engine.draft_plane import DraftPlane
from penstock_server.engine.limits import Limits
from penstock_server.pb import engine_pb2 as pb
from penstock_server.rpc.transfer import addresses, wire
from penstock_server.rpc.transfer.roles import check_role
from shard_client import ENDPOINTS, Shard, Stream, greedy, listening_ports, run_shard, running_shards

PROMPT = [(7 * n) % 290 + 5 for n in range(40)]
# Two blocks of 16 are full.
THERE, HERE = [5, 9], [21, 4]
REST = 32


class Pair(NamedTuple):
    """A shard that computes prompts, and one that fetches them."""

    sender: Shard
    receiver: Shard
    hold: Path


@pytest.fixture(scope="module")
def model(saved_model: Callable[..., Any]) -> Any:
    return saved_model()


@pytest.fixture(scope="module", params=ENDPOINTS)
def pair(
    request: pytest.FixtureRequest, model: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    hold, endpoint = folder / "hold", f"--endpoint={request.param}"
    sender = ["--role=prefill", f"--fault=hold-blocks:{hold}", endpoint]
    with (
        running_shards(model.folder, folder / "a", flags=sender) as [first],
        running_shards(model.folder, folder / "b", flags=["--role=decode", "--poison-cache", endpoint]) as [
            second
        ],
    ):
        yield Pair(first, second, hold)


def _prefill(shard: Shard) -> Stream:
    """A stream in which the blocks of the prompt are computed."""
    stream = shard.open()
    admit = pb.Admit(slot=0, token_ids=PROMPT, prompt_len=40, block_ids=[*THERE, 2], sampling=greedy())
    stream.ask(admitted=[admit], span_slots=[0], span_starts=[0], span_lens=[40])
    return stream


def _order(sender: Shard, there: Stream, here: Stream, **changes: Any) -> pb.FetchBlocksRequest:
    source = sender.describe().block_source
    fields = {
        "address": source.address, "secret": source.secret, "source_epoch": there.epoch, "epoch": here.epoch,
        "source_blocks": THERE, "blocks": HERE, "timeout_ms": 20_000,
    }  # fmt: skip
    return pb.FetchBlocksRequest(**{**fields, **changes})


def _refused(receiver: Shard, order: pb.FetchBlocksRequest) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as error:
        receiver.stub.FetchBlocks(order)
    return error.value.code(), error.value.details()


def _go_on(stream: Stream, num_tokens: int) -> list[int]:
    """The tokens of a slot that begins with the blocks that were fetched."""
    admit = pb.Admit(slot=3, token_ids=PROMPT, prompt_len=40, block_ids=[*HERE, 8, 9], sampling=greedy())
    outcome = stream.ask(admitted=[admit], span_slots=[3], span_starts=[REST], span_lens=[40 - REST])
    tokens = list(outcome.sampled_ids)
    for position in range(40, 40 + num_tokens - 1):
        tokens += stream.ask(span_slots=[3], span_starts=[position], span_lens=[1]).sampled_ids
    stream.ask(retired_slots=[3])
    return tokens


def test_a_slot_that_begins_with_fetched_blocks_gets_the_tokens_of_one_shard(pair: Pair, model: Any) -> None:
    there, here = _prefill(pair.sender), pair.receiver.open()
    here.ask()
    fetched = pair.receiver.stub.FetchBlocks(_order(pair.sender, there, here))
    assert fetched.num_bytes == 2 * _block_bytes(model)
    assert _go_on(here, 12) == oracle.greedy(model.oracle, PROMPT, 12)[0]
    assert (pair.sender.describe().role, pair.receiver.describe().role) == ("prefill", "decode")
    assert not pair.receiver.describe().HasField("block_source")
    path = Path(pair.sender.describe().block_source.address.removeprefix("unix:"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(listening_ports(pair.sender)) == []


def _block_bytes(model: Any) -> int:
    config = model.oracle.config
    return int(config.num_hidden_layers * 2 * 16 * config.num_key_value_heads * config.head_dim * 4)


def test_a_stream_that_has_no_plan_yet_may_have_blocks(pair: Pair, model: Any) -> None:
    there = _prefill(pair.sender)
    here = pair.receiver.open()
    pair.receiver.stub.FetchBlocks(_order(pair.sender, there, here))
    assert _go_on(here, 4) == oracle.greedy(model.oracle, PROMPT, 4)[0]


def test_streams_that_are_over_get_and_give_nothing(pair: Pair) -> None:
    there, here = _prefill(pair.sender), pair.receiver.open()
    here.ask()
    code, words = _refused(pair.receiver, _order(pair.sender, there, here, epoch=here.epoch - 1))
    assert (code, f"epoch {here.epoch - 1} is over" in words) == (grpc.StatusCode.ABORTED, True), words
    code, words = _refused(pair.receiver, _order(pair.sender, there, here, source_epoch=there.epoch - 1))
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert f"the other shard has none for it: epoch {there.epoch - 1} is over" in words


def test_what_is_wrong_is_refused_by_name(pair: Pair) -> None:
    there, here = _prefill(pair.sender), pair.receiver.open()
    here.ask()
    for changes, expected in (
        # It is cut off without a word.
        ({"secret": bytes(32)}, "onnection"),
        ({"secret": b"short"}, "a secret of 5 bytes is none"),
        ({"source_blocks": [5, 9_999]}, "there is no block 9999"),
        ({"blocks": [4, 9_999]}, "there is no block 9999"),
        ({"blocks": [4]}, "source_blocks and blocks differ in length"),
        ({"address": "unix:/nowhere.blocks"}, "unix:/nowhere.blocks: "),
        ({"address": "here"}, "'here' is neither unix:PATH nor tcp:ADDRESS:PORT"),
    ):
        code, words = _refused(pair.receiver, _order(pair.sender, there, here, **changes))
        assert code == grpc.StatusCode.FAILED_PRECONDITION, words
        assert expected in words
    pair.receiver.stub.FetchBlocks(_order(pair.sender, there, here))


def test_a_slow_shard_is_not_waited_for_and_steps_go_on_meanwhile(pair: Pair) -> None:
    there, here = _prefill(pair.sender), pair.receiver.open()
    here.ask()
    pair.hold.touch()
    try:
        late = pair.receiver.stub.FetchBlocks.future(_order(pair.sender, there, here))
        here.ask(), there.ask()
        assert not late.done()
        code, words = _refused(pair.receiver, _order(pair.sender, there, here, timeout_ms=200))
        assert (code, words) == (grpc.StatusCode.FAILED_PRECONDITION, "not done within 200 ms")
    finally:
        pair.hold.unlink()
    assert late.result().num_bytes > 0


def test_strangers_are_heard_up_to_the_size_of_a_request(pair: Pair) -> None:
    there, here = _prefill(pair.sender), pair.receiver.open()
    source = pair.sender.describe().block_source
    huge = struct.pack("!8s32s32sQI", b"penstkb1", source.secret, bytes(32), 1, 2**32 - 1)
    for sent in (b"GET / HTTP/1.1\r\n" + 100 * b"x", huge):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(source.address.removeprefix("unix:"))
            stranger.sendall(sent)
            stranger.settimeout(20)
            assert _hears_nothing(stranger)
    pair.receiver.stub.FetchBlocks(_order(pair.sender, there, here))


def _hears_no_blocks(stranger: socket.socket) -> bool:
    """Whether the stranger gets at most an alert of TLS, and then the end."""
    try:
        return len(stranger.recv(1000)) < 100 and stranger.recv(1) == b""
    except ConnectionResetError:
        return True


def _hears_nothing(stranger: socket.socket) -> bool:
    try:
        return stranger.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_cache_of_another_format_gets_nothing(pair: Pair) -> None:
    there, source = _prefill(pair.sender), pair.sender.describe().block_source
    with addresses.connect(source.address, None, 20) as other:
        wire.send_request(other, wire.Request(source.secret, bytes(32), there.epoch, THERE))
        with pytest.raises(TransferFailed, match="its cache has another format"):
            wire.read_announcement(other, 1)


def _mutual_tls(issued: Issued) -> MutualTls:
    return MutualTls(issued.cert, issued.key, issued.ca)


def test_over_tcp_both_sides_show_a_certificate(model: Any, tmp_path: Path) -> None:
    ours, theirs = (Authority(tmp_path / name).issue() for name in ("ours", "theirs"))
    sender = ["--role=prefill", "--blocks-listen=tcp:127.0.0.1:0", *ours.flags()]
    with (
        running_shards(model.folder, tmp_path / "a", flags=sender) as [first],
        running_shards(model.folder, tmp_path / "b", flags=["--role=decode", *ours.flags()]) as [second],
    ):
        there, here = _prefill(first), second.open()
        source = first.describe().block_source
        assert source.address.startswith("tcp:127.0.0.1:")
        second.stub.FetchBlocks(_order(first, there, here))
        assert _go_on(here, 4) == oracle.greedy(model.oracle, PROMPT, 4)[0]
        with pytest.raises(ssl.SSLCertVerificationError):
            addresses.connect(source.address, _mutual_tls(theirs), 20)
        with addresses.connect(source.address, None, 20) as plain:
            plain.sendall(bytes(200))
            plain.settimeout(20)
            assert _hears_no_blocks(plain)


def test_roles_are_refused_where_they_cannot_be(model: Any, tmp_path: Path) -> None:
    def words(*flags: str) -> str:
        ended = run_shard(f"--model-path={model.folder}", f"--uds-path={tmp_path / 's.sock'}", *flags)
        assert ended.returncode == 2
        return ended.stderr.splitlines()[-1]

    assert "no effect without --role prefill" in words("--blocks-listen=tcp:127.0.0.1:0")
    far = ("--role=prefill", "--blocks-listen=tcp:0.0.0.0:0")
    assert "is reached from other machines; that needs --secret-file" in words(*far)


class _Windowed(NamedTuple):
    model_type: str
    attention_window: int


def test_models_that_are_more_than_blocks_have_no_role(model: Any) -> None:
    description = make_engine(model.folder).description
    check_role("decode", description)
    states = replace(description, abilities=(*description.abilities, "recurrent"))
    with pytest.raises(StartError, match="--role decode: llama keeps states of sequences"):
        check_role("decode", states)
    windowed: Any = _Windowed(description.facts.model_type, attention_window=9)
    window = replace(description, facts=windowed)
    with pytest.raises(StartError, match="--role prefill: llama has a window in all layers"):
        check_role("prefill", window)
    check_role("both", window)


def test_a_draft_plane_knows_nothing_of_blocks_that_others_wrote() -> None:
    plane = DraftPlane(
        Limits(
            num_slots=2, num_blocks=8, block_size=4, vocab_size=10, max_sequence_len=32, max_step_tokens=16
        )
    )
    plane.admit(0, [1, 2, 3])
    plane.begin(0, 0)
    plane.fill(0, 12)
    plane.forget(np.array([2]).tolist())
    plane.admit(1, [1, 2, 3])
    plane.begin(1, 11)
    assert plane.filled(1) == 4, "one block is whole before the one that was fetched"
