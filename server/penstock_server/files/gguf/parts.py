"""From the path of a GGUF file, or of a folder with one, to all files of the model: a large one may be split."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock_server.base.errors import StartError
from penstock_server.files.gguf.header import Header, TensorInfo, read_header

_SUFFIX = ".gguf"
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_COUNT, _NUMBER, _TENSORS = "split.count", "split.no", "split.tensors.count"
_MAX_PARTS = 4096


def is_gguf(path: Path) -> bool:
    """Whether a path is that of a GGUF file."""
    return path.suffix == _SUFFIX and path.is_file()


def gguf_in(folder: Path) -> Path | None:
    """The GGUF file of a folder, the first one of a split model; None if it has none, an error if several."""
    found = sorted(folder.glob(f"*{_SUFFIX}"))
    matches = [_PART.fullmatch(file.name) for file in found]
    models = {match["stem"] if match else file.name for file, match in zip(found, matches, strict=True)}
    if len(models) > 1:
        names = ", ".join(file.name for file in found)
        raise StartError(f"{folder} holds several GGUF files: {names}; give --model-id the path of one")
    return found[0] if found else None


class Parts:
    """The files of one model."""

    def __init__(self, headers: Sequence[Header]) -> None:
        self.headers = tuple(headers)

    @property
    def first(self) -> Path:
        """The file with the metadata."""
        return self.headers[0].path

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the model: those of the first file."""
        return self.headers[0].metadata

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        """All tensors by name."""
        return {name: info for header in self.headers for name, info in header.tensors.items()}

    @property
    def files(self) -> dict[str, Path]:
        """In which file each tensor is."""
        return {name: header.path for header in self.headers for name in header.tensors}


def open_parts(path: Path) -> Parts:
    """Read the headers of a model's files, given any of them; raises StartError."""
    files = _siblings(path)
    headers = []
    for number, file in enumerate(files):
        if not file.is_file():
            raise StartError(f"{file}: part {number + 1} of {len(files)} is missing; download it")
        headers.append(_checked(read_header(file), number, len(files)))
    return _whole(headers)


def _siblings(path: Path) -> list[Path]:
    match = _PART.fullmatch(path.name)
    if match is None:
        return [path]
    count, number = int(match["count"]), int(match["number"])
    if not 1 <= number <= count <= _MAX_PARTS:
        raise StartError(f"{path}: part {number} of {count} is none; expected at most {_MAX_PARTS} parts")
    return [
        path.with_name(f"{match['stem']}-{part:05}-of-{count:05}{_SUFFIX}") for part in range(1, count + 1)
    ]


def _checked(header: Header, number: int, count: int) -> Header:
    if count == 1 and header.metadata.get(_COUNT, 0) in (0, 1):
        return header
    for key, expected in ((_COUNT, count), (_NUMBER, number)):
        found = header.metadata.get(key)
        if found != expected:
            raise StartError(
                f"{header.path}: {key} is {found!r}; expected {expected}, as its name says: give the files of a split "
                "model the names that they were published under"
            )
    return header


def _whole(headers: list[Header]) -> Parts:
    parts, first = Parts(headers), headers[0]
    count = sum(len(header.tensors) for header in headers)
    if len(parts.tensors) != count:
        raise StartError(f"{first.path}: a tensor is in several parts; download all of them again")
    expected = first.metadata.get(_TENSORS, count) if len(headers) > 1 else count
    if expected != count:
        raise StartError(
            f"{first.path}: {_TENSORS} is {expected!r}, but the parts have {count}; download them again"
        )
    return parts
