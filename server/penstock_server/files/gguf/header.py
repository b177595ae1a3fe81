"""The header of a GGUF file: metadata and where tensors lie, checked to the last byte. Reads no tensor.

The package `gguf` is not used: it checks neither counts nor offsets, and brings libraries that nothing else here needs.
"""

import math
import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple

from penstock_server.base.errors import StartError
from penstock_server.files.gguf.block_types import BLOCK_TYPES, OTHER_TYPES, BlockType

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
# No real file comes near.
_MAX_KEYS = 1 << 16
_MAX_TENSORS = 1 << 20
_MAX_NAME = 1 << 10
_MAX_VALUES = 1 << 24
_MAX_SIZE = 1 << 40
_MAX_DIMENSIONS = 4
_MAX_ALIGNMENT = 1 << 16
_ALIGNMENT = "general.alignment"
_STRING, _ARRAY, _BOOL = 8, 9, 7
# Types of values by their number, as `struct` names them.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "B", 10: "Q", 11: "q", 12: "d"}


class TensorInfo(NamedTuple):
    """A tensor of a file."""

    name: str
    type: BlockType
    # Outputs first: the other way round than in the file.
    shape: tuple[int, ...]
    # In the file.
    begin: int
    end: int


class Header(NamedTuple):
    """The header of a file."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


def read_header(path: Path) -> Header:
    """Read and check it; raises StartError that names file, key or tensor, and value."""
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(path, data).header()
    except OSError as error:
        raise StartError(f"{path}: {error.strerror}") from None
    except ValueError:
        raise StartError(f"{path}: the file is empty; download it again") from None


class _Reader:
    """Walks over the bytes of a file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.at = 0
        # For errors: what is being read.
        self.what = "the header"

    def header(self) -> Header:
        num_tensors, num_keys = self._counts()
        metadata: dict[str, Any] = {}
        for number in range(num_keys):
            self.what = f"key {number} of the metadata"
            key = self._string(_MAX_NAME)
            if key in metadata:
                raise self._error(f"{key} is there twice")
            self.what = key
            metadata[key] = self._value()
        infos = [self._info(number) for number in range(num_tensors)]
        alignment = metadata.get(_ALIGNMENT, 32)
        if type(alignment) is not int or not 8 <= alignment <= _MAX_ALIGNMENT or alignment & alignment - 1:
            raise self._error(f"{_ALIGNMENT} is {alignment!r}; expected a power of two from 8 on")
        tensors = self._placed(infos, -(-self.at // alignment) * alignment, alignment)
        return Header(self.path, metadata, tensors)

    def _counts(self) -> tuple[int, int]:
        if self.data[:4] != _MAGIC:
            raise StartError(f"{self.path}: not a GGUF file")
        self.at = 4
        version = self._scalar("I")
        if version not in _VERSIONS:
            raise self._error(f"version is {version}; supported: 2 and 3, little-endian")
        num_tensors, num_keys = self._scalar("Q"), self._scalar("Q")
        for what, count, most in (("tensors", num_tensors, _MAX_TENSORS), ("keys", num_keys, _MAX_KEYS)):
            if count > most:
                raise self._error(f"the number of {what} is {count}; at most {most} are supported")
        return num_tensors, num_keys

    def _value(self) -> Any:
        kind = self._scalar("I")
        if kind == _ARRAY:
            return self._array()
        if kind == _STRING:
            return self._string()
        if kind not in _SCALARS:
            raise self._error(f"{self.what} has the unknown type {kind}")
        value = self._scalar(_SCALARS[kind])
        return bool(value) if kind == _BOOL else value

    def _array(self) -> list[Any]:
        kind, count = self._scalar("I"), self._scalar("Q")
        if kind != _STRING and kind not in _SCALARS:
            raise self._error(f"{self.what} is an array of the type {kind}, which is not supported")
        each = 8 if kind == _STRING else struct.calcsize(_SCALARS[kind])
        if count > _MAX_VALUES or count * each > len(self.data) - self.at:
            raise self._error(f"{self.what} is an array of {count} values, more than there can be")
        if kind == _STRING:
            return [self._string() for _ in range(count)]
        form = f"<{count}{_SCALARS[kind]}"
        values = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return [bool(value) for value in values] if kind == _BOOL else list(values)

    def _string(self, most: int = _MAX_SIZE) -> str:
        length = self._scalar("Q")
        if length > min(most, len(self.data) - self.at):
            raise self._error(f"{self.what} has a text of {length} bytes, more than there can be")
        begin, self.at = self.at, self.at + length
        try:
            return self.data[begin : self.at].decode()
        except UnicodeDecodeError:
            raise self._error(f"{self.what} has a text that is not UTF-8") from None

    def _scalar(self, form: str) -> Any:
        size = struct.calcsize(form)
        if self.at + size > len(self.data):
            raise self._error(f"truncated inside {self.what} ({len(self.data)} bytes)")
        (value,) = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += size
        return value

    def _info(self, number: int) -> TensorInfo:
        """With a begin that counts from the first tensor's."""
        self.what = f"entry {number} of the tensors"
        name = self._string(_MAX_NAME)
        self.what = f"tensor {name}"
        num_dimensions = self._scalar("I")
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise self._error(f"{self.what} has {num_dimensions} dimensions; expected 1 to {_MAX_DIMENSIONS}")
        shape = tuple(self._scalar("Q") for _ in range(num_dimensions))[::-1]
        number, begin = self._scalar("I"), self._scalar("Q")
        if number not in BLOCK_TYPES:
            known = ", ".join(kind.name for kind in BLOCK_TYPES.values())
            kind_name = OTHER_TYPES.get(number, number)
            raise self._error(
                f"{self.what} has the type {kind_name}, which is not supported; supported: {known}"
            )
        kind = BLOCK_TYPES[number]
        if not 0 < math.prod(shape) < _MAX_SIZE or 0 in shape or shape[-1] % kind.numbers:
            raise self._error(
                f"{self.what} of the type {kind.name} has the shape {list(shape)}; "
                f"expected rows of whole blocks of {kind.numbers}"
            )
        return TensorInfo(name, kind, shape, begin, begin + math.prod(shape) // kind.numbers * kind.bytes)

    def _placed(self, infos: list[TensorInfo], first: int, alignment: int) -> dict[str, TensorInfo]:
        found: dict[str, TensorInfo] = {}
        expected = 0
        for info in sorted(infos, key=lambda info: info.begin):
            if info.name in found:
                raise self._error(f"tensor {info.name} is there twice")
            if info.begin % alignment or info.begin < expected:
                raise self._error(
                    f"tensor {info.name} begins at {info.begin}, where it overlaps or is not aligned"
                )
            if first + info.end > len(self.data):
                raise self._error(
                    f"truncated inside tensor {info.name}: {len(self.data)} of at least {first + info.end} bytes"
                )
            expected = info.end
            found[info.name] = info._replace(begin=first + info.begin, end=first + info.end)
        return found

    def _error(self, problem: str) -> StartError:
        return StartError(f"{self.path}: {problem}; download it again or use another file")
