"""Counters of a binary that was compiled with `-C instrument-coverage`, read while it runs.

The formats are those of LLVM: a raw profile has the counters of functions under the hashes of their names, and the
binary says which file a function with such a hash is in. The tools of LLVM read both, but only those of exactly the
version that the compiler has, and a profile only when the process has ended.
"""

import hashlib
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Self

# With the first, counters are written to the file while the process runs.
FLAGS = ("-C", "instrument-coverage", "-C", "llvm-args=-runtime-counter-relocation", "-C", "strip=none")

_MAGIC = 0xFF6C70726F667281
# Header, 64 bits each: magic, version, bytes of ids, functions, padding, counters, padding, bytes of bitmaps, padding,
# bytes of names, and the distances of counters, bitmaps and names from their functions; then what is not read here.
_HEADER = struct.Struct("<16Q")
_VERSION_BITS = 56
_VERSIONS = (10, 11, 12, 13)
# A function: hash of its name, hash of its body, distance of its counters, three pointers more, number of counters,
# and what is not read here.
_FUNCTION = struct.Struct("<QQQQQQI3HHI")


class Counters:
    """How often each function has run, by the hash of its name."""

    def __init__(self, profile: bytes) -> None:
        header = _HEADER.unpack_from(profile)
        _, version, id_bytes, num_functions, padding, num_counters, *_ = header
        if header[0] != _MAGIC or version % (1 << _VERSION_BITS) not in _VERSIONS:
            raise RuntimeError(f"a profile of version {version % (1 << _VERSION_BITS)} is not known")
        first = _HEADER.size + id_bytes
        counters_at = first + num_functions * _FUNCTION.size + padding
        self.of_functions: dict[int, int] = defaultdict(int)
        for number in range(num_functions):
            at = number * _FUNCTION.size
            name, _, distance, _, _, _, count, *_ = _FUNCTION.unpack_from(profile, first + at)
            begin = (distance - header[10] + at) % (1 << 64)
            assert begin + 8 * count <= 8 * num_counters, "counters are of 64 bits"
            self.of_functions[name] += sum(struct.unpack_from(f"<{count}Q", profile, counters_at + begin))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Reads the counters of the one running process whose profile, named by its process id, is in this folder."""
        [file] = (file for file in folder.glob("*.profraw") if Path("/proc", file.stem).exists())
        return cls(file.read_bytes())

    def since(self, before: Self) -> set[int]:
        """The functions that have run since then."""
        return {name for name, count in self.of_functions.items() if count > before.of_functions[name]}


def files_of_functions(binary: Path) -> dict[int, str]:
    """The file of each function, by the hash of its name."""
    sections = _sections(binary.read_bytes())
    names = dict(_file_names(sections["__llvm_covmap"]))
    functions, files, at = sections["__llvm_covfun"], {}, 0
    while at + 28 <= len(functions):
        name, size, _, names_hash = struct.unpack_from("<QIQQ", functions, at)
        numbers = _numbers(functions, at + 28)
        num_files = next(numbers)[0]
        if num_files and names_hash in names:
            files[name] = names[names_hash][next(numbers)[0]]
        at = -(-(at + 28 + size) // 8) * 8
    return files


def _file_names(section: bytes) -> Iterator[tuple[int, list[str]]]:
    """Lists of files, each with the hash by which functions name it."""
    at = 0
    while at + 16 <= len(section):
        _, size, more, _ = struct.unpack_from("<4I", section, at)
        encoded = section[at + 16 : at + 16 + size]
        at = -(-(at + 16 + size + more) // 8) * 8
        numbers = _numbers(encoded, 0)
        (count, _), _, (compressed, begin) = next(numbers), next(numbers), next(numbers)
        text = zlib.decompress(encoded[begin : begin + compressed]) if compressed else encoded[begin:]
        names, place = [], 0
        for _ in range(count):
            length, place = next(_numbers(text, place))
            names.append(text[place : place + length].decode())
            place += length
        yield int.from_bytes(hashlib.md5(encoded).digest()[:8], "little"), names


def _numbers(data: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Numbers in LEB128, each with the place behind it."""
    while True:
        number, shift, more = 0, 0, True
        while more:
            number |= (data[at] & 0x7F) << shift
            more, shift, at = data[at] >= 0x80, shift + 7, at + 1
        yield number, at


def _sections(elf: bytes) -> dict[str, bytes]:
    """The sections of a binary of 64 bits."""
    [table] = struct.unpack_from("<Q", elf, 40)
    size, count, names_number = struct.unpack_from("<3H", elf, 58)
    headers = [struct.unpack_from("<2I4Q", elf, table + number * size) for number in range(count)]
    names_at = headers[names_number][4]
    names = [elf[names_at + name : elf.index(0, names_at + name)].decode() for name, *_ in headers]
    found: dict[str, bytes] = defaultdict(bytes)
    for name, (_, _, _, _, begin, length) in zip(names, headers, strict=True):
        found[name] += elf[begin : begin + length]
    return found
