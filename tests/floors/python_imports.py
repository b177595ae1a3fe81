"""Reads the imports between the files of a Python package, those in functions and for type checkers too."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from floors.tree import Import, Sources


def read_python(root: Path) -> Sources:
    """The package whose folder is `root`."""
    return _Package(root).sources()


class _Name(NamedTuple):
    """`from module import name`, or `import module`."""

    module: str
    name: str | None
    known_as: str
    line: int


class _Package:
    def __init__(self, root: Path) -> None:
        paths = sorted(path.relative_to(root) for path in root.rglob("*.py"))
        self.files = {str(path): ast.parse((root / path).read_text(encoding="utf-8")) for path in paths}
        self.modules = {_module(root.name, path): str(path) for path in paths}
        self.names = {file: list(self._names(root.name, file)) for file in self.files}

    def sources(self) -> Sources:
        return Sources(frozenset(self.files), tuple(self._imports()))

    def _imports(self) -> Iterator[Import]:
        for file, tree in self.files.items():
            used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            for name in self.names[file]:
                imported = self._find(name)
                if imported is not None and imported != file:
                    is_reexport = _is_package(file) and name.known_as not in used
                    yield Import(file, imported, name.line, is_reexport)

    def _names(self, package: str, file: str) -> Iterator[_Name]:
        """All names that a file imports, from wherever."""
        for node in ast.walk(self.files[file]):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield _Name(alias.name, None, alias.asname or alias.name.split(".")[0], node.lineno)
            elif isinstance(node, ast.ImportFrom):
                module = _absolute(package, file, node)
                for alias in node.names:
                    yield _Name(module, alias.name, alias.asname or alias.name, node.lineno)

    def _find(self, name: _Name) -> str | None:
        """The file that defines an imported name; `None` outside of the package. Follows what a package hands on."""
        if name.name is not None and f"{name.module}.{name.name}" in self.modules:
            return self.modules[f"{name.module}.{name.name}"]
        file = self.modules.get(name.module)
        if file is None or not _is_package(file):
            return file
        handed_on = (
            self._find(each) for each in self.names[file] if name.name and each.known_as == name.name
        )
        return next((found for found in handed_on if found is not None), file)


def _module(package: str, path: Path) -> str:
    parts = path.parent.parts if path.name == "__init__.py" else path.with_suffix("").parts
    return ".".join((package, *parts))


def _is_package(file: str) -> bool:
    return Path(file).name == "__init__.py"


def _absolute(package: str, file: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    folders = (package, *Path(file).parent.parts)
    base = folders[: len(folders) - node.level + 1]
    return ".".join((*base, *([node.module] if node.module else [])))
