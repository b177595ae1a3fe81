"""Reads which file of a Rust crate needs which other, by the paths in its code, resolved through re-exports.

`mod child;` is no import, nor is what stands under `#[cfg(test)]`. Naming a folder's module alone is none either: what
counts is what is named inside it. Methods are not resolved: who calls them names a type somewhere.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from floors.rust_source import (
    InnerModule,
    Use,
    code_of,
    inner_modules,
    uses,
    without_tests,
    without_uses,
)
from floors.tree import Import, Sources

# Segments below the crate's root: `crate::a::b` is ("a", "b").
ItemPath = tuple[str, ...]

# Fields and methods, which stand behind one dot, are no names of items; behind `..` they are.
_PATH = re.compile(r"(?<!\w)(?<!::)(?<![^.]\.)(\w+(?:\s*::\s*(?:r#)?\w+)+)")
_IDENTIFIER = re.compile(r"(?<!\w)(?<![^.]\.)[A-Za-z_]\w*")
_RESTRICTION = re.compile(r"\bpub\s*\([^)]*\)")
_DEFINITION = re.compile(r"\b(?:fn|struct|enum|union|trait|type|const|static|macro_rules!)\s+(\w+)")


def read_rust(root: Path) -> Sources:
    """The crate whose `lib.rs` lies in `root`, or else its `main.rs`."""
    return _Crate(root).sources()


class _Module(NamedTuple):
    """A module with a file of its own."""

    path: ItemPath
    file: str
    code: str
    uses: list[Use]
    inner: list[InnerModule]
    defined: set[str]

    def line(self, position: int) -> int:
        return self.code.count("\n", 0, position) + 1

    def within(self, position: int) -> ItemPath:
        """The modules inside this file that a position lies in."""
        return tuple(inner.name for inner in self.inner if inner.start < position < inner.end)


class _Crate:
    def __init__(self, root: Path) -> None:
        self.modules: dict[ItemPath, _Module] = {}
        self._read(root, ())

    def sources(self) -> Sources:
        files = frozenset(module.file for module in self.modules.values())
        return Sources(files, tuple(sorted(set(self._imports()))))

    def _read(self, root: Path, path: ItemPath) -> None:
        """A module and the modules below it, without those of tests."""
        file = _file_of(root, path)
        code, tests = without_tests(code_of((root / file).read_text(encoding="utf-8")))
        defined = set(_DEFINITION.findall(code)) | {inner.name for inner in inner_modules(code)}
        self.modules[path] = _Module(path, file, code, uses(code), inner_modules(code), defined)
        for child in _children(root, path):
            if child not in tests and child != "tests":
                self._read(root, (*path, child))

    def _imports(self) -> Iterator[Import]:
        for module in self.modules.values():
            for position, file, is_reexport in self._needs(module):
                if file != module.file:
                    yield Import(module.file, file, module.line(position), is_reexport)

    def _needs(self, module: _Module) -> Iterator[tuple[int, str, bool]]:
        """Positions in a module's code, and the files that they need."""
        # The replacement has the same length, so that positions stay valid.
        body = without_uses(_RESTRICTION.sub(lambda found: " " * len(found[0]), module.code))
        named = set(_IDENTIFIER.findall(body))
        for use in module.uses:
            path = self._absolute(module, use.path, use.position)
            if path is not None:
                is_reexport = use.is_public and use.known_as not in named
                for file in self._files(path, named):
                    yield use.position, file, is_reexport
        for found in _PATH.finditer(body):
            path = self._absolute(module, tuple(re.split(r"\s*::\s*", found[1])), found.start())
            if path is not None:
                for file in self._files(path, named):
                    yield found.start(), file, False

    def _absolute(self, module: _Module, path: ItemPath, position: int) -> ItemPath | None:
        """A path below the crate's root; `None` if it leads out of the crate or to a name of this file alone."""
        scope = module.path + module.within(position)
        first, rest = path[0], path[1:]
        if first == "crate":
            return rest
        if first == "self":
            return scope + rest
        if first == "super":
            while path and path[0] == "super":
                scope, path = scope[:-1], path[1:]
            return scope + path
        if (*module.path, first) in self.modules:
            return (*module.path, *path)
        for use in module.uses:
            if use.known_as == first and use.path[0] != first:
                base = self._absolute(module, use.path, use.position)
                return None if base is None else base + rest
        return None

    def _files(self, path: ItemPath, named: set[str]) -> set[str]:
        """The files that a path needs. A glob needs those of the names that the importer's code has."""
        if path and path[-1] == "*":
            module = self.modules.get(path[:-1])
            if module is None:
                return self._files(path[:-1], named)
            found = (self._file((*path[:-1], name)) for name in named if self._offers(module, name, set()))
            return {file for file in found if file is not None}
        file = self._file(path)
        return set() if file is None else {file}

    def _file(self, path: ItemPath, visited: frozenset[ItemPath] = frozenset()) -> str | None:
        """The file in which the last segment that is a module or an item is defined; `None` for a folder alone."""
        if path in visited:
            return None
        module = self.modules[()]
        for index, segment in enumerate(path):
            is_last = index == len(path) - 1
            child = self.modules.get((*module.path, segment))
            if child is not None and not (is_last and self._offers(module, segment, set(), modules=False)):
                module = child
                continue
            return self._item(module, path[index:], visited | {path})
        has_children = any(other[:-1] == module.path for other in self.modules if other)
        return None if has_children else module.file

    def _item(self, module: _Module, rest: ItemPath, visited: frozenset[ItemPath]) -> str | None:
        """The file that defines what a module offers under the name `rest[0]`."""
        if rest[0] in module.defined:
            return module.file
        for use in module.uses:
            path = self._absolute(module, use.path, use.position)
            if path is None:
                continue
            if use.known_as == rest[0]:
                return self._file(path + rest[1:], visited)
            if use.known_as == "*" and path[:-1] in self.modules:
                source = self.modules[path[:-1]]
                if self._offers(source, rest[0], set()):
                    return self._file(path[:-1] + rest, visited)
        return module.file

    def _offers(self, module: _Module, name: str, visited: set[ItemPath], *, modules: bool = True) -> bool:
        """Whether a module defines a name or hands it on."""
        if module.path in visited:
            return False
        visited.add(module.path)
        if name in module.defined or (modules and (*module.path, name) in self.modules):
            return True
        for use in module.uses:
            if use.known_as == name:
                return True
            path = self._absolute(module, use.path, use.position) if use.known_as == "*" else None
            source = self.modules.get(path[:-1]) if path else None
            if source is not None and self._offers(source, name, visited):
                return True
        return False


def _file_of(root: Path, path: ItemPath) -> str:
    if not path:
        return "lib.rs" if (root / "lib.rs").exists() else "main.rs"
    flat = "/".join(path) + ".rs"
    return flat if (root / flat).exists() else "/".join((*path, "mod.rs"))


def _children(root: Path, path: ItemPath) -> list[str]:
    """Modules in the folder of a module: files, and folders with a module."""
    folder = root.joinpath(*path)
    if not folder.is_dir():
        return []
    files = {file.stem for file in folder.glob("*.rs") if file.name not in ("mod.rs", "lib.rs", "main.rs")}
    return sorted(files | {file.parent.name for file in folder.glob("*/mod.rs")})
