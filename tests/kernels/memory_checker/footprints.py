"""Which program of a launch touched which word of a storage."""

from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

Addresses = npt.NDArray[np.uint64]
Words = npt.NDArray[np.int64]

_NOBODY = 0
_SEVERAL = -1


class Access(Enum):
    """How a program touches memory. Updates are atomics of integers, whose order does not matter."""

    LOAD = "loads"
    STORE = "stores"
    UPDATE = "updates"


# For each access of a program to a word: the accesses of other programs that conflict with it.
_CONFLICTS = {
    Access.LOAD: (Access.STORE, Access.UPDATE),
    Access.STORE: (Access.STORE, Access.LOAD, Access.UPDATE),
    Access.UPDATE: (Access.STORE, Access.LOAD),
}


class Clash(NamedTuple):
    """Words that other programs touched in a conflicting way, and the program of each: None if there were several."""

    words: Words
    access: Access
    programs: list[int | None]


class Footprints:
    """The accesses to one storage during one launch. Programs are numbers from 0 on."""

    def __init__(self, num_words: int) -> None:
        self._num_words = num_words
        # The number of the program plus 1, by word.
        self._touched: dict[Access, npt.NDArray[np.int32]] = {}

    def clashes(self, words: Words, access: Access, program: int) -> list[Clash]:
        """The accesses of other programs to these words that conflict with this access."""
        found = []
        for other in _CONFLICTS[access]:
            if other in self._touched:
                programs = self._touched[other][words]
                is_clash = (programs != _NOBODY) & (programs != program + 1)
                if is_clash.any():
                    numbers = [None if who == _SEVERAL else who - 1 for who in programs[is_clash].tolist()]
                    found.append(Clash(words[is_clash], other, numbers))
        return found

    def add(self, words: Words, access: Access, program: int) -> None:
        """Keep that this program touched these words."""
        if access not in self._touched:
            self._touched[access] = np.zeros(self._num_words, np.int32)
        touched = self._touched[access]
        if access is not Access.STORE:  # two programs that store clash
            before = touched[words]
            is_shared = (before != _NOBODY) & (before != program + 1)
            touched[words] = np.where(is_shared, np.int32(_SEVERAL), np.int32(program + 1))
        else:
            touched[words] = program + 1


class Storage:
    """Memory that tensors of a launch share. Its words are as wide as the narrowest elements of these tensors."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.first = tensor.untyped_storage().data_ptr()
        self._num_bytes = tensor.untyped_storage().nbytes()
        self.word_bytes = tensor.element_size()
        self._footprints: Footprints | None = None

    @property
    def footprints(self) -> Footprints:
        if self._footprints is None:
            self._footprints = Footprints(-(-self._num_bytes // self.word_bytes))
        return self._footprints

    def words_of(self, addresses: Addresses, size: int) -> Words:
        """The words of elements of `size` bytes."""
        words = (addresses.view(np.int64) - self.first) // self.word_bytes
        if size <= self.word_bytes:
            return words
        return (words[:, None] + np.arange(size // self.word_bytes)).ravel()

    def address_of(self, word: int) -> int:
        return self.first + word * self.word_bytes
