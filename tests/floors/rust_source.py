"""Splits the text of a Rust file as far as its imports need it: code, tests, and the names of each `use`."""

import re
from collections.abc import Iterator
from typing import NamedTuple

# Literals and comments, first come first served. Block comments nest and are matched by hand.
_NOT_CODE = re.compile(
    r"""(?P<line>//[^\n]*)
    | (?P<block>/\*)
    | (?P<raw>\b(?:b|c)?r(?P<hashes>\#*)".*?"(?P=hashes))
    | (?P<string>\b(?:b|c)?"(?:[^"\\]|\\.)*"|"(?:[^"\\]|\\.)*")
    | (?P<char>\bb?'(?:[^'\\]|\\.[^']*)'|'(?:[^'\\\n]|\\.[^']*)')""",
    re.VERBOSE | re.DOTALL,
)
_CFG_TEST = re.compile(r"#\s*\[\s*cfg\s*\(\s*test\s*\)\s*\]")
_ATTRIBUTE = re.compile(r"\s*#\s*\[")
_ITEM = re.compile(
    r"\s*(?:pub|mod|use|fn|impl|struct|enum|union|const|static|type|trait|async|unsafe|extern|macro_rules)\b"
)
_OUTER_MODULE = re.compile(r"\bmod\s+(\w+)\s*;")
_INNER_MODULE = re.compile(r"\bmod\s+(\w+)\s*\{")
_USE = re.compile(r"(?P<public>\bpub\s*(?:\([^)]*\)\s*)?)?\buse\s+(?P<tree>[^;]+);")
_PAIRS = {"(": ")", "[": "]", "{": "}"}


class Use(NamedTuple):
    """One name of a `use`: `use a::b as c` is the path `a`, `b`, known as `c`. A glob is known as `*`."""

    path: tuple[str, ...]
    known_as: str
    is_public: bool
    position: int


class InnerModule(NamedTuple):
    """`mod name { … }` and where it lies."""

    name: str
    start: int
    end: int


def code_of(text: str) -> str:
    """The text with comments and literals blanked; lines and positions stay."""
    parts, position = [], 0
    while found := _NOT_CODE.search(text, position):
        end = _end_of_block_comment(text, found.start()) if found["block"] else found.end()
        parts += [text[position : found.start()], re.sub(r"[^\n]", " ", text[found.start() : end])]
        position = end
    return "".join(parts) + text[position:]


def _end_of_block_comment(text: str, start: int) -> int:
    depth = 0
    for mark in re.finditer(r"/\*|\*/", text[start:]):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return start + mark.end()
    return len(text)


def without_tests(code: str) -> tuple[str, set[str]]:
    """The code with everything under `#[cfg(test)]` blanked, and the modules in other files that are declared there."""
    modules: set[str] = set()
    while found := _CFG_TEST.search(code):
        end = _end_of_item(code, found.end())
        modules |= set(_OUTER_MODULE.findall(code[found.end() : end]))
        code = code[: found.start()] + re.sub(r"[^\n]", " ", code[found.start() : end]) + code[end:]
    return code, modules


def _end_of_item(code: str, position: int) -> int:
    """The end of what an attribute stands before: an item, a field, an arm or a statement."""
    while attribute := _ATTRIBUTE.match(code, position):
        position = end_of_bracket(code, attribute.end() - 1)
    ends = ";" if _ITEM.match(code, position) else ";,"
    while position < len(code):
        char = code[position]
        if char in ends:
            return position + 1
        if char in _PAIRS.values():
            return position
        if char in _PAIRS:
            position = end_of_bracket(code, position)
            if char == "{":
                return position
            continue
        position += 1
    return position


def end_of_bracket(code: str, start: int) -> int:
    """The position after the bracket that closes the one at `start`."""
    opened, closed = code[start], _PAIRS[code[start]]
    depth = 0
    for position in range(start, len(code)):
        depth += (code[position] == opened) - (code[position] == closed)
        if depth == 0:
            return position + 1
    return len(code)


def inner_modules(code: str) -> list[InnerModule]:
    """Modules with a body in this file, outer ones first."""
    return [
        InnerModule(found[1], found.start(), end_of_bracket(code, found.end() - 1))
        for found in _INNER_MODULE.finditer(code)
    ]


def uses(code: str) -> list[Use]:
    """Every name that a `use` brings into this file."""
    return [
        Use(path, known_as, bool(found["public"]), found.start("tree"))
        for found in _USE.finditer(code)
        for path, known_as in _leaves(found["tree"])
    ]


def without_uses(code: str) -> str:
    """The code with its `use` declarations blanked."""
    return _USE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), code)


def _leaves(tree: str, outer: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    tree = tree.strip()
    if "{" in tree:
        before, _, group = tree.partition("{")
        outer += _segments(before)
        for each in _split(group[: group.rindex("}")]):
            yield from _leaves(each, outer)
        return
    name, _, known_as = tree.partition(" as ")
    path = outer + _segments(name)
    if path[-1] == "self" and len(path) > 1:
        path = path[:-1]
    yield path, known_as.strip() or path[-1]


def _segments(path: str) -> tuple[str, ...]:
    """`::a` is a crate's name whatever is in scope; it keeps an empty first segment."""
    segments = [segment.strip().removeprefix("r#") for segment in path.strip().split("::")]
    leading = ("",) if path.strip().startswith("::") else ()
    return leading + tuple(segment for segment in segments if segment)


def _split(group: str) -> Iterator[str]:
    """The members of a group: at commas that are in no inner group."""
    depth, start = 0, 0
    for position, char in enumerate(group + ","):
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            if group[start:position].strip():
                yield group[start:position]
            start = position + 1
