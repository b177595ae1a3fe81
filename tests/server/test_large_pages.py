"""Files that stay mapped are in memory before they are used, step by step."""

import ctypes
import mmap
import os
from pathlib import Path

import pytest
from penstock_server.network.large_pages import LargePages

_STEP = 1 << 20
_NUM_STEPS = 8


def _num_cached(file: Path) -> list[int]:
    """Of each step of a file, how many pages are in the page cache."""
    with file.open("r+b") as stream, mmap.mmap(stream.fileno(), 0) as mapped:
        view = ctypes.c_char.from_buffer(mapped)
        found = (ctypes.c_ubyte * (len(mapped) // mmap.PAGESIZE))()
        address, length = ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(len(mapped))
        assert ctypes.CDLL(None).mincore(address, length, found) == 0
        del view
    each = _STEP // mmap.PAGESIZE
    return [sum(flag & 1 for flag in found[at : at + each]) for at in range(0, len(found), each)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that the page cache does not have."""
    made = tmp_path / "weights"
    made.write_bytes(os.urandom(_STEP * _NUM_STEPS))
    with made.open("rb") as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if any(_num_cached(made)):
        pytest.skip("this file system keeps its files in memory")
    return made


def test_what_is_read_is_in_memory_up_to_a_step_behind_it(file: Path) -> None:
    each = _STEP // mmap.PAGESIZE
    with LargePages(file, _STEP) as pages:
        pages.read_to(1)
        assert _num_cached(file)[:2] == [each, each]
        assert _num_cached(file)[-1] == 0
        pages.read_to(3 * _STEP)
        assert _num_cached(file)[:4] == [each] * 4
        pages.read_to(_NUM_STEPS * _STEP)
        assert _num_cached(file) == [each] * _NUM_STEPS


def test_an_end_behind_that_of_the_file_is_its_own(file: Path) -> None:
    with LargePages(file, 3 * _STEP) as pages:
        pages.read_to(1 << 40)
    assert sum(_num_cached(file)) == _NUM_STEPS * _STEP // mmap.PAGESIZE


def test_an_empty_file_has_nothing_to_read(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with LargePages(tmp_path / "empty") as pages:
        pages.read_to(1)


def test_a_system_that_does_not_know_the_call_reads_as_before(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_server.network.large_pages._MADV_POPULATE_READ", 9999)
    with LargePages(file, _STEP) as pages:
        pages.read_to(_STEP)
    assert not any(_num_cached(file))
