"""The types that the readers and the check use: a tree of sources, its floors, and the imports between its files."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Import(NamedTuple):
    """One file needs another. Files are named by their path below the tree's root."""

    importer: str
    imported: str
    line: int
    # Only handed on to those who import the importer: it may not point up, and closes no circle.
    is_reexport: bool = False


class Sources(NamedTuple):
    """The files of a tree that count, and the imports between them."""

    files: frozenset[str]
    imports: tuple[Import, ...]


class Floor(NamedTuple):
    """Files and folders (they end with `/`) that may import each other and what lies on floors below."""

    name: str
    members: tuple[str, ...]

    def holds(self, file: str) -> bool:
        return any(
            file == member or (member.endswith("/") and file.startswith(member)) for member in self.members
        )


class Tree(NamedTuple):
    """A package or crate, where its sources lie, who reads them, and its floors, lowest first."""

    name: str
    root: Path
    read: Callable[[Path], Sources]
    floors: tuple[Floor, ...]
