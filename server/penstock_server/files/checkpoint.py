"""The safetensors files of a model folder: what is in them, checked to the last byte. Reads headers, never data.

Pure Python, so that a broken download is refused before torch is imported, with the file and the tensor named.
"""

import json
import math
import os
import struct
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock_server.architectures.fields import read_json
from penstock_server.architectures.text_part import names_of_text
from penstock_server.base.errors import StartError
from penstock_server.base.regular_file import open_regular
from penstock_server.files.missing_weights import no_weights

# Bytes per element of the types a weight may have; others are refused when a weight needs them.
ELEMENT_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
                  "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "BOOL": 1}  # fmt: skip
# The tensors that a quantized module may have in the place of its `weight`.
IN_THE_PLACE_OF_WEIGHT = ("qweight", "weight_packed", "_weight_qdata")
LOADABLE_DTYPES = ("F32", "F16", "BF16")
_MAX_HEADER_BYTES = 100_000_000
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Checkpoint:
    """All tensors of a folder by name."""

    def __init__(self, folder: Path, entries: dict[str, Entry], left_out: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.entries = entries
        # Names of tensors of other parts of the model than the one that is served.
        self.left_out = left_out

    @classmethod
    def open(cls, folder: Path) -> "Checkpoint":
        """Read and check every header; raises StartError naming file and tensor."""
        entries: dict[str, Entry] = {}
        for file in _files(folder):
            for name, entry in read_header(file).items():
                if name in entries:
                    raise StartError(
                        f"{file}: tensor {name} is in {entries[name].file.name}, too; remove one file"
                    )
                entries[name] = entry
        return cls(folder, entries)

    @classmethod
    def of_file(cls, file: Path) -> "Checkpoint":
        """Open one file as `open` does, whatever others lie beside it."""
        return cls(file.parent, read_header(file))

    def under(self, written: tuple[tuple[str, str], ...]) -> "Checkpoint":
        """The tensors under the names of a family. `written`: pairs of a written part of a name and its replacement."""
        entries: dict[str, Entry] = {}
        for name, entry in self.entries.items():
            for part, ours in written:
                name = name.replace(part, ours)
            if name in entries:
                raise StartError(f"{entry.file}: tensor {entry.name} is there as {entries[name].name}, too")
            entries[name] = entry
        return Checkpoint(self.folder, entries, self.left_out)

    def without(self, modules: Collection[str]) -> "Checkpoint":
        """Without the tensors of these modules."""
        left_out = [name for name in self.entries if name.rpartition(".")[0] in modules]
        entries = {name: entry for name, entry in self.entries.items() if name not in left_out}
        return Checkpoint(self.folder, entries, (*self.left_out, *left_out))

    def of_text(self) -> "Checkpoint":
        """The tensors of the text part of a model, under the names that they have where it is alone."""
        names = names_of_text(self.entries)
        entries: dict[str, Entry] = {}
        for written, name in names.items():
            entry = self.entries[written]
            if name in entries:
                raise StartError(f"{entry.file}: tensor {entry.name} is there as {entries[name].name}, too")
            entries[name] = entry
        left_out = tuple(name for name in self.entries if name not in names)
        return Checkpoint(self.folder, entries, left_out)

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return self._find(name) is not None

    def _find(self, name: str) -> Entry | None:
        """A checkpoint of a model without its head has names without their first part."""
        return self.entries.get(name) or self.entries.get(name.partition(".")[2])

    def require_name(self, name: str) -> Entry:
        """The entry of a tensor that must be there."""
        entry = self._find(name)
        if entry is None:
            raise StartError(
                f"{self.folder}: tensor {name} is in no safetensors file; download the model again"
            )
        return entry

    def require_module(self, name: str) -> None:
        """Raise StartError unless there is a tensor for the weight of a module, quantized or not."""
        if not any(self.has(f"{name}.{part}") for part in IN_THE_PLACE_OF_WEIGHT):
            self.require_name(f"{name}.weight")

    def require(self, name: str, shape: tuple[int, ...]) -> Entry:
        """The entry of a tensor that must be there, be of that shape and be loadable."""
        entry = self.require_name(name)
        if entry.shape != shape:
            raise StartError(
                f"{entry.file}: tensor {name} has shape {list(entry.shape)}, but config.json makes it {list(shape)}"
            )
        if entry.dtype not in LOADABLE_DTYPES:
            raise StartError(
                f"{entry.file}: tensor {name} is {entry.dtype}; supported: {', '.join(LOADABLE_DTYPES)}"
            )
        return entry


def _files(folder: Path) -> list[Path]:
    index = folder / _INDEX
    if index.exists():
        return _indexed_files(index)
    files = sorted(folder.glob("*.safetensors"))
    if files:
        return files
    names = [file.name for file in folder.iterdir()]
    raise StartError(f"{folder} {no_weights(names, str(folder), str(folder))}")


def _indexed_files(index: Path) -> list[Path]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise StartError(f"{index}: weight_map is missing or empty; download the file again")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if name != Path(name).name or not name.endswith(".safetensors"):
            raise StartError(
                f"{index}: {name!r} is not the plain name of a safetensors file in the same folder"
            )
        if not (index.parent / name).is_file():
            raise StartError(f"{index}: names {name}, which is not in the folder; download it again")
    return [index.parent / name for name in names]


def read_header(file: Path) -> dict[str, Entry]:
    try:
        with open_regular(file) as stream:
            size = os.fstat(stream.fileno()).st_size
            prefix = stream.read(8)
            header_len = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            if not 2 <= header_len <= min(size - 8, _MAX_HEADER_BYTES):
                raise StartError(
                    f"{file}: truncated or not a safetensors file ({size} bytes); download it again"
                )
            raw = json.loads(stream.read(header_len))
    except OSError as error:
        raise StartError(f"{file}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise StartError(f"{file}: its header is not valid JSON; download it again") from None
    if not isinstance(raw, dict):
        raise StartError(f"{file}: its header is not a JSON object; download it again")
    raw.pop("__metadata__", None)
    entries = {name: _entry(file, name, described) for name, described in raw.items()}
    _check_layout(file, entries, size - 8 - header_len)
    return entries


def _entry(file: Path, name: str, described: Any) -> Entry:
    try:
        dtype, shape, (begin, end) = described["dtype"], described["shape"], described["data_offsets"]
        numbers_ok = all(type(number) is int and number >= 0 for number in (begin, end, *shape))
    except (KeyError, TypeError, ValueError):
        numbers_ok = False
    if not numbers_ok:
        raise StartError(f"{file}: the header entry of tensor {name} is malformed; download it again")
    if not isinstance(dtype, str) or dtype not in ELEMENT_BYTES:
        raise StartError(f"{file}: tensor {name} has the unknown type {dtype!r}")
    if end - begin != math.prod(shape) * ELEMENT_BYTES[dtype]:
        raise StartError(f"{file}: tensor {name} of shape {shape} does not fill its {end - begin} bytes")
    return Entry(name, file, dtype, tuple(shape), begin, end)


def _check_layout(file: Path, entries: dict[str, Entry], data_len: int) -> None:
    expected = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != expected:
            raise StartError(f"{file}: tensor {name} overlaps another or leaves a gap; download it again")
        if entry.end > data_len:
            raise StartError(
                f"{file}: truncated inside tensor {name}: {data_len} of at least {entry.end} bytes; download it again"
            )
        expected = entry.end
    if expected != data_len:
        raise StartError(f"{file}: {data_len - expected} bytes belong to no tensor; download it again")
