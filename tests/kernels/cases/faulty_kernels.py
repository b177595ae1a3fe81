"""Small kernels that break one rule each, or only look as if they did: for the tests of the memory checker."""

import triton
import triton.language as tl


@triton.jit
def copy_without_mask(x_ptr, out_ptr, num_numbers, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    numbers = tl.load(x_ptr + places)
    tl.store(out_ptr + places, numbers, mask=places < num_numbers)


@triton.jit
def copy_with_mask(x_ptr, out_ptr, num_numbers, shift, BLOCK: tl.constexpr):
    """Right where `shift` is 0: the lanes behind the end are masked off."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < num_numbers
    tl.store(out_ptr + places + shift, tl.load(x_ptr + places, mask=mask), mask=mask)


@triton.jit
def _store(out_ptr, number):
    tl.store(out_ptr, number)


@triton.jit
def store_one(out_ptr, other_ptr, place, number):
    """By a function of its own: the fault leaves two functions."""
    _store(out_ptr + place, number + tl.load(other_ptr))


@triton.jit
def load_from_integer(out_ptr, address):
    tl.store(out_ptr, tl.load(address.to(tl.int64).to(tl.pointer_type(tl.float32))))


@triton.jit
def load_all(x_ptr, out_ptr, NUM_NUMBERS: tl.constexpr):
    """Every program reads all of x: no race, as long as nobody writes it."""
    total = tl.sum(tl.load(x_ptr + tl.arange(0, NUM_NUMBERS)))
    tl.store(out_ptr + tl.program_id(0), total)


@triton.jit
def store_neighbours(out_ptr, STEP: tl.constexpr):
    """Two numbers for each program: side by side if STEP is 2, else overlapping."""
    places = tl.program_id(0) * STEP + tl.arange(0, 2)
    tl.store(out_ptr + places, places)


@triton.jit
def shift_left(x_ptr):
    """Reads what the next program writes."""
    place = tl.program_id(0)
    tl.store(x_ptr + place, tl.load(x_ptr + place + 1))


@triton.jit
def store_lanes(out_ptr, DIVISOR: tl.constexpr, EQUAL: tl.constexpr):
    """Several lanes have one place."""
    lanes = tl.arange(0, 8)
    tl.store(out_ptr + lanes // DIVISOR, lanes * 0 if EQUAL else lanes)


@triton.jit
def count(count_ptr, number):
    tl.atomic_add(count_ptr, number)


@triton.jit
def count_and_look(count_ptr, out_ptr):
    """The count that a program sees depends on the order."""
    tl.atomic_add(count_ptr, 1)
    tl.store(out_ptr + tl.program_id(0), tl.load(count_ptr))


@triton.jit
def exchange(x_ptr):
    tl.atomic_xchg(x_ptr, tl.program_id(0))


@triton.jit
def take_tickets(ticket_ptr, out_ptr):
    """Which program ran as which."""
    program = (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(2) + tl.program_id(
        2
    )
    tl.store(out_ptr + program, tl.atomic_add(ticket_ptr, 1))
