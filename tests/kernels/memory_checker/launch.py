"""The rules for the memory that the programs of one launch touch."""

import math
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from kernels.memory_checker.arguments import Argument, tensors_in
from kernels.memory_checker.faults import MemoryFault
from kernels.memory_checker.footprints import Access, Addresses, Clash, Storage

Grid = tuple[int, int, int]


class Launch:
    """One launch of a kernel. `given`: the arguments of the kernel by name, tensors on the CPU.

    `exempt` are tensors whose words several programs may touch, such as a block that nobody reads.
    """

    def __init__(
        self, kernel: str, given: dict[str, Any], rng: np.random.Generator, exempt: list[Argument]
    ) -> None:
        self._kernel = kernel
        self._rng = rng
        self._exempt = exempt
        self._grid: Grid = (1, 1, 1)
        self._order = np.zeros(0, np.int64)
        self._num_started = 0
        self._program = 0
        self.arguments: dict[int, Argument] = {}  # by the identity of the tensor
        self._storages: dict[int, Storage] = {}
        for name, value in given.items():
            for its_name, tensor in tensors_in(name, value):
                self._add(its_name, tensor)

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        argument = Argument.of(name, tensor)
        self.arguments[id(tensor)] = argument
        storage = self._storages.setdefault(argument.storage, Storage(tensor))
        storage.word_bytes = min(storage.word_bytes, argument.itemsize)

    def begin(self, grid: Grid) -> None:
        """Choose the order of the programs."""
        self._grid = grid
        self._order = self._rng.permutation(math.prod(grid))
        self._num_started = 0

    def next_program(self) -> Grid:
        """The place in the grid of the program that runs next."""
        self._program = int(self._order[self._num_started])
        self._num_started += 1
        return self._place_of(self._program)

    def check(self, argument: Argument | None, addresses: Addresses, size: int, access: Access) -> None:
        """Raise MemoryFault unless this program may touch elements of `size` bytes there. `argument` is the one that
        the pointers come from; None: they were made of integers, and must lie in any one."""
        if addresses.size == 0:
            return
        low, high = int(addresses.min()), int(addresses.max())
        argument = argument or self._argument_around(low) or self._nowhere(low, access)
        if low < argument.first or high + size > argument.end:
            self._out_of_bounds(argument, low if low < argument.first else high, access)
        if self._order.size > 1:
            self._check_races(self._storages[argument.storage], argument, addresses, size, access)

    def check_lanes(self, argument: Argument | None, addresses: Addresses, bits: npt.NDArray[Any]) -> None:
        """Raise MemoryFault if one store writes different values to one address: any of them may stay."""
        order = np.lexsort((bits, addresses))
        addresses, bits = addresses[order], bits[order]
        collides = (addresses[1:] == addresses[:-1]) & (bits[1:] != bits[:-1])
        for address in addresses[1:][collides].tolist():
            if not self._is_exempt(address):
                self._fail(f"stores different values to {self._element_at(argument, address)} at once")

    def _check_races(
        self, storage: Storage, argument: Argument, addresses: Addresses, size: int, access: Access
    ) -> None:
        words = storage.words_of(addresses, size)
        for clash in storage.footprints.clashes(words, access, self._program):
            self._check_clash(clash, storage, argument, access)
        storage.footprints.add(words, access, self._program)

    def _check_clash(self, clash: Clash, storage: Storage, argument: Argument, access: Access) -> None:
        for word, program in zip(clash.words.tolist(), clash.programs, strict=True):
            address = storage.address_of(word)
            if not self._is_exempt(address):
                other = "another program" if program is None else f"program {self._place_of(program)}"
                what = argument.element_at(address)
                self._fail(
                    f"{access.value} {what}, which {other} {clash.access.value}: they run in any order"
                )

    def _out_of_bounds(self, argument: Argument, address: int, access: Access) -> NoReturn:
        size = f"{argument.num_elements} elements" if argument.num_elements else "no memory"
        other = self._argument_around(address)
        where = "" if other is None else f", inside {other.name}"
        self._fail(f"{access.value} {argument.element_at(address)} of {size}{where}")

    def _nowhere(self, address: int, access: Access) -> NoReturn:
        self._fail(f"{access.value} address {address:#x}, which is in no argument")

    def _fail(self, what: str) -> NoReturn:
        raise MemoryFault(f"{self._kernel}: program {self._place_of(self._program)} {what}")

    def _place_of(self, program: int) -> Grid:
        x, y, z = np.unravel_index(program, self._grid)
        return int(x), int(y), int(z)

    def _argument_around(self, address: int) -> Argument | None:
        return next((one for one in self.arguments.values() if one.first <= address < one.end), None)

    def _element_at(self, argument: Argument | None, address: int) -> str:
        argument = argument or self._argument_around(address)
        return hex(address) if argument is None else argument.element_at(address)

    def _is_exempt(self, address: int) -> bool:
        return any(one.first <= address < one.end for one in self._exempt)
