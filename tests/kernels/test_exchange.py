"""Sums over shared memory: right at every size, the same bits on all ranks, and no wait for one that is gone."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from penstock_kernels.native.exchange import PART_BYTES, Exchange, ExchangeFailed, is_supported

pytestmark = pytest.mark.skipif(not is_supported(), reason="the ops in C are not built here")

TIMEOUT_S = 60.0
PART = PART_BYTES // 4


@contextmanager
def met(folder: Path, size: int) -> Iterator[list[Exchange]]:
    """The ends of all ranks, in one process."""
    with ThreadPoolExecutor(size) as pool, ExitStack() as stack:
        ends = list(pool.map(lambda rank: Exchange(folder, rank, size, TIMEOUT_S), range(size)))
        for end in ends:
            stack.callback(end.leave)
        yield ends


def together(ends: list[Exchange], call: Callable[[Exchange, int], Any]) -> list[Any]:
    """The results of the call on all ranks, made at the same time."""
    with ThreadPoolExecutor(len(ends)) as pool:
        return list(pool.map(call, ends, range(len(ends))))


def add(mine: torch.Tensor, end: Exchange, rank: int) -> None:
    """A rank's part of a sum."""
    end.all_reduce(mine[rank])


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_ranks_have_the_sum_in_the_order_of_ranks(tmp_path: Path, size: int) -> None:
    counts = (1, 7, 0, 4096, PART - 1, PART, PART + 1, 2 * PART + 5, 1)
    with met(tmp_path, size) as ends:
        for count in counts:
            brought = torch.randn(size, count)
            mine = brought.clone()
            together(ends, partial(add, mine))
            expected = brought[0].clone()
            for rank in range(1, size):
                expected += brought[rank]
            assert all(torch.equal(part, expected) for part in mine)


def test_sums_of_bfloat16_are_rounded_once(tmp_path: Path) -> None:
    brought = torch.randn(3, 2 * PART + 77).bfloat16()
    mine = brought.clone()
    with met(tmp_path, 3) as ends:
        together(ends, partial(add, mine))
    expected = ((brought[0].float() + brought[1].float()) + brought[2].float()).bfloat16()
    assert all(torch.equal(part, expected) for part in mine)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64])
def test_other_types_and_strides_are_added(tmp_path: Path, dtype: torch.dtype) -> None:
    brought = torch.arange(2 * 6 * 5).view(2, 6, 5).to(dtype)
    mine = brought.clone()
    with met(tmp_path, 2) as ends:
        together(ends, lambda end, rank: end.all_reduce(mine[rank].t()))
    assert torch.equal(mine[0], brought.sum(0))
    assert torch.equal(mine[1], mine[0])


@pytest.mark.parametrize("shape", [(3, 5), (0, 4), (1, PART + 3)])
def test_all_get_what_each_brings(tmp_path: Path, shape: tuple[int, ...]) -> None:
    brought = torch.randint(-9, 9, (3, *shape))
    with met(tmp_path, 3) as ends:
        found = together(ends, lambda end, rank: end.all_gather(brought[rank]))
    for parts in found:
        assert torch.equal(torch.stack(parts), brought)


def test_a_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    with met(tmp_path, 2) as ends:
        ends[0].set_timeout(0.1)
        with pytest.raises(ExchangeFailed, match=r"rank 1 did not come within 0\.1 s"):
            ends[0].all_reduce(torch.zeros(4))


def test_a_rank_that_left_is_noticed_before_the_time_is_over(tmp_path: Path) -> None:
    with met(tmp_path, 2) as ends:
        ends[1].leave()
        with pytest.raises(ExchangeFailed, match="rank 1 has ended"):
            ends[0].all_reduce(torch.zeros(4))


def test_what_a_rank_brought_before_it_ended_counts(tmp_path: Path) -> None:
    with met(tmp_path, 2) as ends, ThreadPoolExecutor(1) as pool:
        other = pool.submit(ends[1].all_gather, torch.tensor([1]))
        assert [part.item() for part in ends[0].all_gather(torch.tensor([0]))] == [0, 1]
        other.result()


def test_ranks_that_bring_different_sizes_are_told(tmp_path: Path) -> None:
    def bring(end: Exchange, rank: int) -> str:
        with pytest.raises(ExchangeFailed) as failed:
            end.all_reduce(torch.zeros(4 + rank))
        return str(failed.value)

    with met(tmp_path, 2) as ends:
        assert together(ends, bring) == ["rank 1 brought another size", "rank 0 brought another size"]


def test_a_rank_can_come_once_only(tmp_path: Path) -> None:
    with met(tmp_path, 2), pytest.raises(ExchangeFailed, match="rank 1 is there already"):
        Exchange(tmp_path, 1, 2, TIMEOUT_S)


_PEER = """
import sys
from pathlib import Path
import torch
from penstock_kernels.native.exchange import Exchange
end = Exchange(Path(sys.argv[1]), 1, 2, 60)
end.all_reduce(torch.ones(4))
print("added", flush=True)
sys.stdin.read()
"""


def test_a_killed_process_is_noticed(tmp_path: Path) -> None:
    peer = subprocess.Popen(
        [sys.executable, "-c", _PEER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with peer:
        assert peer.stdout is not None
        end, x = Exchange(tmp_path, 0, 2, TIMEOUT_S), torch.ones(4)
        end.all_reduce(x)
        assert x.tolist() == [2.0] * 4
        assert peer.stdout.readline() == b"added\n"
        peer.kill()
        with pytest.raises(ExchangeFailed, match="rank 1 has ended"):
            end.all_reduce(x)
        end.leave()
