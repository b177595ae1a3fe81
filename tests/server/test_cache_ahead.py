"""The cache's memory is given to the process ahead of the plans, and nothing that is written there changes."""

import ctypes
import mmap
import os
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from penstock_kernels.native.touch import touch
from penstock_server.engine.cache_ahead import CacheAhead
from penstock_server.engine.limits import Limits
from penstock_server.engine.plan import Admit, Appends, Plan
from penstock_server.engine.sampling_params import SamplingParams

_PAGE = mmap.PAGESIZE
# With these sizes, a block takes one page in each tensor of a layer.
_NUM_BLOCKS, _BLOCK_SIZE = 400, 16
_NUM_AHEAD = 4 * 32 // 16
LIMITS = Limits(4, _NUM_BLOCKS, _BLOCK_SIZE, 100, 2048, 32)


def pool_of(memory: mmap.mmap, num_planes: int) -> torch.Tensor:
    """Fresh memory, a page for each block of a plane."""
    shape = (num_planes // 2, 2, _NUM_BLOCKS + 1, _BLOCK_SIZE, 1, _PAGE // 4 // _BLOCK_SIZE)
    return torch.frombuffer(memory, dtype=torch.float32).view(shape)


@pytest.fixture
def memory() -> Iterator[mmap.mmap]:
    with mmap.mmap(-1, 4 * (_NUM_BLOCKS + 1) * _PAGE) as fresh:
        fresh.madvise(mmap.MADV_NOHUGEPAGE)
        yield fresh


def present(tensor: torch.Tensor) -> list[bool]:
    """Whether the system has given each page of it."""
    count = tensor.numel() * tensor.element_size() // _PAGE
    found = (ctypes.c_ubyte * count)()
    address = ctypes.c_void_p(tensor.data_ptr())
    assert ctypes.CDLL(None, use_errno=True).mincore(address, ctypes.c_size_t(count * _PAGE), found) == 0, (
        os.strerror(ctypes.get_errno())
    )
    return [bool(page & 1) for page in found]


def admitting(*blocks: int) -> Plan:
    return Plan(1, 1, admitted=[Admit(0, [5], 1, list(blocks), SamplingParams())])


def finish(ahead: CacheAhead) -> None:
    for thread in ahead._threads:
        thread.join()


def expect(pool: torch.Tensor, end: int) -> None:
    """Checks that the blocks up to this one are present in every plane, and no others."""
    for plane in pool.flatten(0, 1):
        assert present(plane) == [True] * end + [False] * (_NUM_BLOCKS + 1 - end)


def test_blocks_behind_the_highest_are_there_before_they_are_written(memory: mmap.mmap) -> None:
    pool = pool_of(memory, 4)
    ahead = CacheAhead([pool], LIMITS)
    expect(pool, 0)
    ahead.follow(admitting(3, 1))
    finish(ahead)
    expect(pool, 4 + _NUM_AHEAD)
    ahead.follow(admitting(4))  # too few for a thread
    finish(ahead)
    expect(pool, 4 + _NUM_AHEAD)
    appends = Appends(np.array([0]), np.array([2]), np.array([60, 50]))
    ahead.follow(Plan(1, 2, appended=appends))
    finish(ahead)
    expect(pool, 61 + _NUM_AHEAD)
    ahead.follow(admitting(_NUM_BLOCKS - 1))
    finish(ahead)
    expect(pool, _NUM_BLOCKS)
    del ahead, pool


def test_pools_of_any_shapes_are_touched_together(memory: mmap.mmap) -> None:
    first, second = pool_of(memory, 4)[:1], pool_of(memory, 4)[1:]
    ahead = CacheAhead([first, second], LIMITS)
    ahead.follow(admitting(100))
    finish(ahead)
    for pool in (first, second):
        expect(pool, 101 + _NUM_AHEAD)
    del first, second, ahead, pool


def test_a_plan_without_blocks_touches_nothing(memory: mmap.mmap) -> None:
    pool = pool_of(memory, 4)
    ahead = CacheAhead([pool], LIMITS)
    ahead.follow(Plan(1, 1))
    ahead.follow(Plan(1, 1, appended=Appends(*(np.array([], dtype=np.int64),) * 3)))
    assert not ahead._threads
    CacheAhead([], LIMITS).follow(admitting(100))  # the cache is elsewhere
    expect(pool, 0)
    del pool, ahead


def test_nothing_is_touched_when_it_is_closed(memory: mmap.mmap) -> None:
    pool = pool_of(memory, 4)
    ahead = CacheAhead([pool], LIMITS)
    ahead.follow(admitting(2))
    ahead.close()
    ahead.follow(admitting(300))
    assert not any(thread.is_alive() for thread in ahead._threads)
    assert not any(present(pool)[3 + _NUM_AHEAD : _NUM_BLOCKS])
    del pool, ahead


def test_what_is_written_meanwhile_stays(memory: mmap.mmap) -> None:
    """Also in the first byte of a page, which is the one that is touched."""
    pool = pool_of(memory, 4).view(-1)
    for number in range(20):
        ahead = CacheAhead([pool.view(2, 2, _NUM_BLOCKS + 1, -1)], LIMITS)
        ahead.follow(admitting(_NUM_BLOCKS - 1))
        pool.fill_(number)
        finish(ahead)
        assert bool((pool == number).all())
    del pool, ahead


def test_bytes_stay_as_they_are() -> None:
    x = torch.arange(3 * _PAGE, dtype=torch.uint8)
    touch(x.data_ptr() + 5, x.numel() - 5)
    assert torch.equal(x, torch.arange(3 * _PAGE, dtype=torch.uint8))
