"""Weights that were quantized at load, in a file for later starts: written while they are made, then mapped.

What of a matrix does not depend on its numbers is known before (`Layout`), so a file is used only if it has
exactly these tensors; nothing that it says is trusted.
"""

import json
import logging
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from penstock_kernels import Quantized
from safetensors import SafetensorError, safe_open

from penstock_server.base.errors import StartError
from penstock_server.files.checkpoint import read_header
from penstock_server.files.quantize_cache.entry import Entry, Unfinished, begin_writing
from penstock_server.files.quantize_cache.room import has_room
from penstock_server.network.large_pages import LargePages
from penstock_server.network.quantization.scheme import MatrixPart

logger = logging.getLogger(__name__)

# Tensors begin there in a file, so that vectors of a processor do.
_ALIGNMENT = 64
_CHUNK_BYTES = 1 << 20
_DTYPES = {
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float8_e4m3fn: "F8_E4M3",
}
# The field that is the same for all rows of a target: it is not in the file.
_SHARED = "table"

Make = Callable[[MatrixPart], Quantized]


class Kept(Protocol):
    """The parts that an earlier start left, or those that this start keeps."""

    # Whether parts are those of an earlier start.
    is_found: bool

    def part(self, part: MatrixPart, make: Make) -> Quantized:
        """A part: as it was kept, or as `make` makes it."""
        ...


class NothingKept:
    """No file."""

    is_found = False

    def part(self, part: MatrixPart, make: Make) -> Quantized:
        """See `Kept`."""
        return make(part)


class _Tensor(NamedTuple):
    """A tensor of a file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    # The offset behind the header.
    begin: int

    @property
    def end(self) -> int:
        return self.begin + self.dtype.itemsize * torch.Size(self.shape).numel()


class Layout:
    """A file's parts of matrices, in the order in which they are read, each with a row that is like all others."""

    def __init__(self, rows: Iterable[tuple[MatrixPart, Quantized]]) -> None:
        self.rows: dict[str, Quantized] = {}
        self.tensors: dict[str, _Tensor] = {}
        end = 0
        for part, row in rows:
            name = name_of(part)
            if name in self.rows:
                continue
            self.rows[name] = row
            count = len(range(*part.rows.indices(part.source.shape[0])))
            for field, tensor in own_tensors(row).items():
                added = _Tensor(tensor.dtype, (count, *tensor.shape[1:]), end)
                self.tensors[f"{name}.{field}"] = added
                end = added.end
        self.data_bytes = end

    def header(self, digest: str, checksum: int) -> bytes:
        """The begin of a file, always of one length."""
        entries: dict[str, Any] = {"__metadata__": {"digest": digest, "checksum": f"{checksum:08x}"}}
        for name, tensor in self.tensors.items():
            offsets = [tensor.begin, tensor.end]
            entries[name] = {
                "dtype": _DTYPES[tensor.dtype],
                "shape": tensor.shape,
                "data_offsets": offsets,
            }
        text = json.dumps(entries).encode()
        text += b" " * (-(8 + len(text)) % _ALIGNMENT)
        return len(text).to_bytes(8, "little") + text


def name_of(part: MatrixPart) -> str:
    """The name of a part among all parts of a model."""
    source, rows, columns, _arrange = part
    expert = "" if source.expert is None else f"[{source.expert}]"
    step = f":{rows.step}" if rows.step not in (None, 1) else ""
    return f"{source.name}{expert}[{rows.start}:{rows.stop}{step}, {columns.start}:{columns.stop}]"


def own_tensors(matrix: Quantized) -> dict[str, torch.Tensor]:
    """The tensors that a file has for each matrix."""
    return {field: tensor for field, tensor in matrix.tensors.items() if field != _SHARED}


@contextmanager
def open_kept(entry: Entry, layout: Layout) -> Iterator[Kept]:
    """The file that an earlier start has left, or else one that this start leaves if nothing fails."""
    found = _found(entry, layout)
    if found is not None:
        entry.touch()
        yield found
        return
    unfinished = _begun(entry, layout)
    if unfinished is None:
        yield NothingKept()
        return
    making = _Making(entry, layout, unfinished)
    try:
        yield making
        making.finish()
    finally:
        unfinished.discard()


def _found(entry: Entry, layout: Layout) -> "_Mapped | None":
    if not entry.file.exists():
        return None
    try:
        opened = _checked(entry, layout)
    except (_UnfitError, StartError, SafetensorError, OSError) as error:
        reason = str(error).removesuffix("; download it again")
        logger.warning("quantized weights of an earlier start are not used, but made anew: %s", reason)
        return None
    return _Mapped(opened, layout)


class _UnfitError(Exception):
    """A file that is not what it should be."""


def _checked(entry: Entry, layout: Layout) -> Any:
    """The file opened, with exactly the bytes that were written."""
    found = read_header(entry.file)
    expected = {
        name: (_DTYPES[tensor.dtype], tensor.shape, tensor.begin) for name, tensor in layout.tensors.items()
    }
    if {name: (one.dtype, one.shape, one.begin) for name, one in found.items()} != expected:
        raise _UnfitError(f"{entry.file}: it has other tensors than this model")
    opened: Any = safe_open(entry.file, framework="pt")
    told = opened.metadata() or {}
    if told.get("digest") != entry.digest:
        raise _UnfitError(f"{entry.file}: it is that of another model")
    if told.get("checksum") != f"{_checksum(entry.file):08x}":
        raise _UnfitError(f"{entry.file}: its checksum is wrong")
    return opened


def _checksum(file: Path) -> int:
    """The checksum of all that is behind the header."""
    found, chunk = 0, memoryview(bytearray(_CHUNK_BYTES))
    with LargePages(file) as pages, file.open("rb", buffering=0) as stream:
        stream.seek(8 + int.from_bytes(stream.read(8), "little"))
        pages.read_to(stream.tell())
        while count := stream.readinto(chunk):
            pages.read_to(stream.tell())
            found = zlib.crc32(chunk[:count], found)
    return found


class _Mapped:
    """Matrices as mapped pages of a file."""

    is_found = True

    def __init__(self, opened: Any, layout: Layout) -> None:
        self._opened = opened
        self._layout = layout

    def part(self, part: MatrixPart, make: Make) -> Quantized:
        """See `Kept`."""
        name = name_of(part)
        row = self._layout.rows[name]
        tensors = {field: self._tensor(f"{name}.{field}") for field in own_tensors(row)}
        return replace(row, **tensors)  # type: ignore[arg-type]

    def _tensor(self, name: str) -> torch.Tensor:
        found: torch.Tensor = self._opened.get_tensor(name)
        return found if found.data_ptr() % found.element_size() == 0 else found.clone()


def _begun(entry: Entry, layout: Layout) -> Unfinished | None:
    num_bytes = len(layout.header(entry.digest, 0)) + layout.data_bytes
    try:
        return begin_writing(entry, num_bytes) if has_room(entry, num_bytes) else None
    except OSError as error:
        _warn(entry, error)
        return None


def _warn(entry: Entry, error: OSError) -> None:
    logger.warning(
        "quantized weights are not kept for later starts: %s: %s; --quantize-cache names another folder, and "
        "--quantize-cache-gb 0 keeps none",
        entry.file, error.strerror or error,
    )  # fmt: skip


class _Making:
    """Matrices that are made, and written to a file. Where that fails, they are only made."""

    is_found = False

    def __init__(self, entry: Entry, layout: Layout, unfinished: Unfinished) -> None:
        self._entry = entry
        self._layout = layout
        self._unfinished = unfinished
        self._written: set[str] = set()
        self._checksum = 0
        unfinished.stream.seek(len(layout.header(entry.digest, 0)))

    def part(self, part: MatrixPart, make: Make) -> Quantized:
        """See `Kept`."""
        found, name = make(part), name_of(part)
        if name not in self._written and not self._unfinished.stream.closed:
            self._written.add(name)
            self._try(lambda: self._write(name, found))
        return found

    def finish(self) -> None:
        """When all parts are written."""
        if not self._unfinished.stream.closed:
            self._try(self._finish)

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            _warn(self._entry, error)
            self._unfinished.discard()

    def _write(self, name: str, matrix: Quantized) -> None:
        for field, tensor in own_tensors(matrix).items():
            expected = self._layout.tensors[f"{name}.{field}"]
            assert (tensor.dtype, tensor.shape) == (expected.dtype, expected.shape)
            content: Any = tensor.contiguous().cpu().view(torch.uint8).flatten().numpy()
            self._checksum = zlib.crc32(content, self._checksum)
            self._unfinished.stream.write(content)

    def _finish(self) -> None:
        assert self._written == self._layout.rows.keys(), "all were read"
        self._unfinished.stream.seek(0)
        self._unfinished.stream.write(self._layout.header(self._entry.digest, self._checksum))
        self._unfinished.finish()
        logger.info("quantized weights are kept for later starts: %s", self._entry.file)
