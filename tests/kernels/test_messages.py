"""Messages over shared memory: in order, of any size, and no wait for one that is gone."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from penstock_kernels.native.channel import NUM_PARTS, Channel
from penstock_kernels.native.exchange import PART_BYTES, ExchangeFailed, is_supported

pytestmark = pytest.mark.skipif(not is_supported(), reason="the ops in C are not built here")

TIMEOUT_S = 60.0


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[Channel, Channel]]:
    """Who sends, rank 2, and who takes, rank 5."""
    with ThreadPoolExecutor(2) as pool:
        source, target = pool.map(lambda rank: Channel(tmp_path, 2, 5, rank, TIMEOUT_S), (2, 5))
    yield source, target
    source.leave()
    target.leave()


def test_messages_come_in_order_whatever_their_size(ends: tuple[Channel, Channel]) -> None:
    source, target = ends
    sizes = (3, 0, PART_BYTES // 8, PART_BYTES // 8 + 1, 1, 3 * PART_BYTES // 8 + 5)
    sent = [torch.randint(-9, 9, (size,)) for size in sizes]
    assert not target.has_come()
    for message in sent:
        source.put(message)
    assert target.has_come()
    assert [target.take_numbers() for _ in sent] == [message.tolist() for message in sent]
    assert not target.has_come()


def test_a_tensor_is_taken_with_its_shape_and_type(ends: tuple[Channel, Channel]) -> None:
    source, target = ends
    sent = torch.randn(7, 5).bfloat16()
    source.put(sent.t())
    room = torch.zeros(5, 7, dtype=torch.bfloat16)
    target.take(room)
    assert torch.equal(room, sent.t())
    source.put(sent)
    with pytest.raises(ExchangeFailed, match="rank 2 sent another size"):
        target.take(torch.zeros(4))


def test_who_sends_waits_only_where_there_is_no_room(ends: tuple[Channel, Channel]) -> None:
    source, target = ends
    for number in range(NUM_PARTS):
        source.put(torch.tensor([number]))
    with ThreadPoolExecutor(1) as pool:
        more = pool.submit(source.put, torch.tensor([NUM_PARTS]))
        assert not more.done()
        assert [target.take_numbers() for _ in range(NUM_PARTS + 1)] == [[n] for n in range(NUM_PARTS + 1)]
        more.result()


def test_what_is_larger_than_all_room_passes(ends: tuple[Channel, Channel]) -> None:
    source, target = ends
    sent = torch.arange((NUM_PARTS + 3) * PART_BYTES // 8)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(source.put, sent)
        room = torch.empty_like(sent)
        target.take(room)
        done.result()
    assert torch.equal(room, sent)


def test_an_end_that_left_is_noticed_and_what_it_sent_counts(ends: tuple[Channel, Channel]) -> None:
    source, target = ends
    source.put(torch.tensor([1]))
    source.leave()
    assert target.take_numbers() == [1]
    with pytest.raises(ExchangeFailed, match="rank 2 has ended"):
        target.take_numbers()
