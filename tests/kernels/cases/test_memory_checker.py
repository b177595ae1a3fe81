"""The memory checker finds every kind of fault, and nothing else. Only in Triton's interpreter."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from kernels.cases import faulty_kernels
from kernels.memory_checker.faults import MemoryFault


def _fails(message: str) -> Any:
    return pytest.raises(MemoryFault, match=f"^{re.escape(message)}")


def test_a_load_behind_the_end() -> None:
    x, out = torch.ones(60), torch.zeros(64)
    faulty_kernels.copy_without_mask[(3,)](x, out, 60, BLOCK=16)
    with _fails("copy_without_mask: program (1, 0, 0) loads x_ptr[63] of 60 elements"):
        faulty_kernels.copy_without_mask[(2,)](x, out, 60, BLOCK=32)


def test_lanes_that_are_masked_off_may_point_anywhere() -> None:
    x, out = torch.arange(60.0), torch.zeros(60)
    faulty_kernels.copy_with_mask[(2,)](x, out, 60, 0, BLOCK=64)
    assert torch.equal(out, x)


def test_a_store_before_the_start() -> None:
    x, storage = torch.ones(60), torch.zeros(90)
    with _fails("copy_with_mask: program (0, 0, 0) stores out_ptr[-3] of 60 elements"):
        faulty_kernels.copy_with_mask[(1,)](x, storage[10:70], 60, -3, BLOCK=64)
    assert not storage.any()


def test_a_store_behind_a_slice_of_a_storage() -> None:
    """A layer of the cache is one: what lies behind it is the next layer's."""
    x, storage = torch.ones(60), torch.zeros(90)
    with _fails("copy_with_mask: program (0, 0, 0) stores out_ptr[61] of 60 elements"):
        faulty_kernels.copy_with_mask[(1,)](x, storage[:60], 60, 2, BLOCK=64)
    rows = torch.zeros(4, 20)[:, :15]  # 75 numbers from the first to the last
    with _fails("copy_with_mask: program (0, 0, 0) stores out_ptr[75] of 75 elements"):
        faulty_kernels.copy_with_mask[(1,)](x, rows, 60, 16, BLOCK=64)


def test_a_store_through_a_null_pointer() -> None:
    out = torch.zeros(0, dtype=torch.int32)
    with _fails("store_one: program (0, 0, 0) stores out_ptr[4] of no memory"):
        faulty_kernels.store_one[(1,)](out, torch.ones(1, dtype=torch.int32), 4, 1)


def test_a_store_through_a_pointer_of_another_tensor() -> None:
    storage = torch.zeros(32, dtype=torch.int32)
    with _fails("store_one: program (0, 0, 0) stores out_ptr[20] of 16 elements, inside other_ptr"):
        faulty_kernels.store_one[(1,)](storage[:16], storage[16:], 20, 1)


def test_a_pointer_made_of_an_integer() -> None:
    x, out = torch.ones(2), torch.zeros(1)
    with _fails("load_from_integer: program (0, 0, 0) loads address 0x10, which is in no argument"):
        faulty_kernels.load_from_integer[(1,)](out, 16)
    with _fails("load_from_integer: program (0, 0, 0) loads address"):
        faulty_kernels.load_from_integer[(1,)](out, x.data_ptr())


def test_programs_may_read_the_same() -> None:
    out = torch.zeros(5)
    faulty_kernels.load_all[(5,)](torch.ones(16), out, NUM_NUMBERS=16)
    assert out.tolist() == [16] * 5


def test_two_programs_that_store_one_word() -> None:
    out = torch.zeros(9, dtype=torch.int64)
    faulty_kernels.store_neighbours[(4,)](out, STEP=2)
    assert out.tolist() == [*range(8), 0]
    with pytest.raises(
        MemoryFault, match=r"^store_neighbours: program (.*) stores out_ptr\[(\d)\], which program"
    ):
        faulty_kernels.store_neighbours[(8,)](out, STEP=1)


def test_two_programs_that_store_one_word_through_views_of_other_widths() -> None:
    wide = torch.zeros(8, dtype=torch.int64)
    narrow = wide.view(torch.int32)
    with pytest.raises(MemoryFault, match=r"(x_ptr\[3\]|out_ptr\[0\]), which program"):
        faulty_kernels.load_all[(2,)](wide[:4], narrow[6:], NUM_NUMBERS=4)


def test_a_program_that_reads_what_another_writes() -> None:
    for _ in range(5):  # orders
        with pytest.raises(MemoryFault, match=r"^shift_left: program .* (loads|stores) x_ptr\[\d\], which"):
            faulty_kernels.shift_left[(8,)](torch.zeros(9))


def test_memory_that_is_exempt(exempt_from_races: Callable[[torch.Tensor], None]) -> None:
    out = torch.zeros(2, 9, dtype=torch.int64)
    exempt_from_races(out[0])
    faulty_kernels.store_neighbours[(8,)](out[0], STEP=1)
    faulty_kernels.store_lanes[(1,)](out[0], DIVISOR=2, EQUAL=False)
    with pytest.raises(MemoryFault):
        faulty_kernels.store_neighbours[(8,)](out[1], STEP=1)


def test_lanes_that_store_one_word() -> None:
    out = torch.zeros(8, dtype=torch.int32)
    faulty_kernels.store_lanes[(1,)](out, DIVISOR=1, EQUAL=False)
    faulty_kernels.store_lanes[(1,)](out, DIVISOR=2, EQUAL=True)
    with _fails("store_lanes: program (0, 0, 0) stores different values to out_ptr[0] at once"):
        faulty_kernels.store_lanes[(1,)](out, DIVISOR=2, EQUAL=False)


def test_atomics_whose_order_does_not_matter() -> None:
    total = torch.zeros(1, dtype=torch.int32)
    faulty_kernels.count[(5,)](total, 3)
    assert total.item() == 15


def test_atomics_whose_order_matters() -> None:
    with pytest.raises(MemoryFault, match=r"^count: program .* stores count_ptr\[0\], which program"):
        faulty_kernels.count[(5,)](torch.zeros(1), 0.1)
    with pytest.raises(MemoryFault, match=r"^exchange: program .* stores x_ptr\[0\], which program"):
        faulty_kernels.exchange[(5,)](torch.zeros(1, dtype=torch.int32))
    with pytest.raises(MemoryFault, match=r"^count_and_look: program .* count_ptr\[0\], which"):
        faulty_kernels.count_and_look[(5,)](
            torch.zeros(1, dtype=torch.int32), torch.zeros(5, dtype=torch.int32)
        )


def _order(grid: tuple[int, ...]) -> list[int]:
    tickets, out = torch.zeros(1, dtype=torch.int32), torch.zeros(30, dtype=torch.int32)
    faulty_kernels.take_tickets[grid](tickets, out)
    return out.tolist()


def test_programs_run_once_each_in_an_order_that_changes() -> None:
    orders = [_order(grid) for grid in ((30,), (30,), (5, 6), (2, 3, 5))]
    assert all(sorted(order) == list(range(30)) for order in orders)
    assert len({tuple(order) for order in [*orders, range(30)]}) == 5
