"""Sources lie on floors: a file imports from its own floor and those below, and no files form a circle."""

from collections.abc import Callable
from pathlib import Path

import pytest
from floors.check import problems
from floors.python_imports import read_python
from floors.rust_imports import read_rust
from floors.table import TREES
from floors.tree import Floor, Sources, Tree


def test_every_tree_keeps_to_its_floors() -> None:
    found = [problem for tree in TREES for problem in problems(tree)]
    assert not found, "\n".join(["", *found])


# The tests from here on test the check itself, on small trees.

LOW_AND_HIGH = (Floor("low", ("low/", "__init__.py", "lib.rs")), Floor("high", ("high/", "top.py", "top.rs")))


@pytest.fixture
def found(tmp_path: Path) -> Callable[..., list[str]]:
    """Writes a tree and says what is wrong with it."""

    def check(files: dict[str, str], floors: tuple[Floor, ...] = LOW_AND_HIGH) -> list[str]:
        root = tmp_path / "tree"
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        read: Callable[[Path], Sources] = read_rust if "lib.rs" in files else read_python
        kept = tuple(
            floor._replace(members=tuple(each for each in floor.members if (root / each).exists()))
            for floor in floors
        )
        return problems(Tree("tree", root, read, kept))

    return check


Check = Callable[..., list[str]]


def test_an_import_that_points_down_is_fine(found: Check) -> None:
    assert found({"low/a.py": "", "high/b.py": "from tree.low import a\nfrom tree.low.a import x\n"}) == []


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (1, "from tree.high.b import x"),
        (1, "from tree.high import b"),
        (1, "import tree.high.b"),
        (1, "from ..high.b import x"),
        (2, "def f():\n    from tree.high.b import x"),
        (3, "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tree.high.b import x"),
    ],
)
def test_a_python_import_that_points_up_is_named(found: Check, line: int, text: str) -> None:
    assert found({"low/a.py": text, "high/b.py": ""}) == [
        f"tree: low/a.py:{line} imports high/b.py, but low is below high"
    ]


def test_comments_strings_and_other_packages_are_no_python_imports(found: Check) -> None:
    text = '# from tree.high.b import x\n"""import tree.high.b"""\nimport json\nfrom high.b import x\n'
    assert found({"low/a.py": text, "high/b.py": ""}) == []


def test_a_python_package_hands_names_on(found: Check) -> None:
    files = {"low/__init__.py": "from tree.low.a import x\n__all__ = ['x']\n", "low/a.py": "x = 1\n"}
    # To the file that defines the name: the package itself needs nothing of b.
    assert found({**files, "low/b.py": "from tree.low import x\n"}) == []
    assert found({**files, "low/a.py": "from tree.low.b import y\nx = 1\n"}) == [
        "tree: a circle: low/a.py:1 imports low/b.py, low/b.py:1 imports low/a.py"
    ]


def test_a_python_package_that_uses_a_name_needs_it(found: Check) -> None:
    files = {
        "low/__init__.py": "from tree.low.a import x\ny = x\n",
        "low/a.py": "from tree.low import y\nx = 1\n",
    }
    assert found(files) == [
        "tree: a circle: low/__init__.py:1 imports low/a.py, low/a.py:1 imports low/__init__.py"
    ]


def test_what_a_package_hands_on_may_not_point_up(found: Check) -> None:
    assert found({"low/__init__.py": "from tree.high.b import x\n", "high/b.py": "x = 1\n"}) == [
        "tree: low/__init__.py:1 imports high/b.py, but low is below high"
    ]


def test_a_circle_is_reported_once_and_by_its_shortest_path(found: Check) -> None:
    files = {
        "low/a.py": "from tree.low import b\n",
        "low/b.py": "from tree.low import c, d\n",
        "low/c.py": "from tree.low import a, d\n",
        "low/d.py": "",
        "low/e.py": "from tree.low import a\n",
    }
    assert found(files) == [
        "tree: a circle: low/a.py:1 imports low/b.py, low/b.py:1 imports low/c.py, low/c.py:1 imports low/a.py"
    ]


def test_every_file_has_one_floor_and_every_member_is_there(tmp_path: Path) -> None:
    for name in ("a.py", "b.py", "c.py"):
        (tmp_path / name).write_text("")
    floors = (Floor("low", ("a.py", "b.py", "gone/")), Floor("high", ("b.py",)))
    assert problems(Tree("tree", tmp_path, read_python, floors)) == [
        "tree: b.py is on several floors: low, high",
        "tree: c.py is on no floor",
        "tree: floor low names gone/, which is not there",
    ]


HIGH = {
    "lib.rs": "mod high;\nmod low;\n",
    "high/mod.rs": "mod b;\npub use b::B;\n",
    "high/b.rs": "pub struct B;\n",
}


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (1, "use crate::high::B;"),
        (1, "use crate::{high::{B as C, self}};"),
        (1, "use super::super::high::b::B;"),
        (1, "use crate::high::*;\nfn f(_: B) {}"),
        (2, "use crate::high;\nfn f(_: high::B) {}"),
        (2, "fn f() {\n    let _ = crate::high::b::B;\n}"),
        (2, "mod inner {\n    use super::super::super::high::B;\n}"),
        (1, "fn f<'a>(_: &'a str) -> Vec<crate::high::B> { vec![] }"),
        (2, "const Q: char = '\"';\nfn f(_: crate::high::B) {}"),
        (2, "#[cfg(test)]\nuse std::io; fn f(_: crate::high::B) {}"),
    ],
)
def test_a_rust_path_that_points_up_is_named(found: Check, line: int, text: str) -> None:
    assert found({**HIGH, "low/mod.rs": "mod a;\n", "low/a.rs": text}) == [
        f"tree: low/a.rs:{line} imports high/b.rs, but low is below high"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "// use crate::high::B;",
        "/* /* nested */ use crate::high::B; */",
        "//! See [`crate::high::B`].",
        'const A: &str = "use crate::high::B;";',
        'const A: &str = "\\"use crate::high::B;";',
        'const A: &str = r#"" use crate::high::B; "#;',
        "#[cfg(test)]\nmod tests {\n    use crate::high::B;\n    fn f() { { } }\n}",
        "#[cfg(test)]\n#[expect(dead_code)]\nfn f(_: crate::high::B) {}",
        "#[cfg(test)]\nuse crate::high::B;",
        "pub(in crate::high) struct A;",
        "use high::B;",
        "use ::high::B;",
        "use crate::high;",
    ],
)
def test_what_is_no_rust_import(found: Check, text: str) -> None:
    assert found({**HIGH, "low/mod.rs": "mod a;\n", "low/a.rs": text}) == []


def test_rust_files_of_tests_do_not_count(found: Check) -> None:
    files = {
        "low/mod.rs": "mod a;\n#[cfg(test)]\nmod cases;\n",
        "low/a.rs": "#[cfg(test)]\nmod tests;\n",
        "low/a/tests.rs": "use crate::high::B;\n",
        "low/cases.rs": "use crate::high::B;\n",
    }
    assert found({**HIGH, **files}) == []


def test_a_rust_folder_that_declares_and_hands_on_closes_no_circle(found: Check) -> None:
    files = {
        "lib.rs": "mod low;\n",
        "low/mod.rs": "mod a;\nmod b;\npub use a::A;\npub use b::{B, make};\n",
        "low/a.rs": "use super::B;\npub struct A(B);\n",
        "low/b.rs": "pub struct B;\npub fn make() -> B { B }\n",
    }
    assert found(files) == []
    assert found({"lib.rs": "mod low;\n", "low/b.rs": "use super::A;\npub struct B;\n"}) == [
        "tree: a circle: low/a.rs:1 imports low/b.rs, low/b.rs:1 imports low/a.rs"
    ]


def test_a_rust_folder_with_code_of_its_own_is_a_file_like_others(found: Check) -> None:
    files = {
        "lib.rs": "mod low;\n",
        "low/mod.rs": "mod a;\npub use a::A;\npub struct M(A);\n",
        "low/a.rs": "use super::M;\npub struct A;\n",
    }
    assert found(files) == ["tree: a circle: low/a.rs:1 imports low/mod.rs, low/mod.rs:2 imports low/a.rs"]


def test_rust_children_are_found_without_a_use(found: Check) -> None:
    files = {
        "lib.rs": "mod low;\n",
        "low/mod.rs": "mod a;\npub fn f() { a::g() }\n",
        "low/a.rs": "pub fn g() { super::f() }\n",
    }
    assert found(files) == ["tree: a circle: low/a.rs:1 imports low/mod.rs, low/mod.rs:2 imports low/a.rs"]


def test_what_a_rust_folder_hands_on_through_others_is_found_where_it_is_defined(found: Check) -> None:
    files = {
        **HIGH,
        "high/mod.rs": "pub mod b;\npub mod c;\npub use c::*;\n",
        "high/c.rs": "pub use super::b::B as D;\n",
        "low/mod.rs": "use crate::high::D;\npub struct A(D);\n",
    }
    assert found(files) == ["tree: low/mod.rs:1 imports high/b.rs, but low is below high"]


def test_what_a_rust_folder_hands_on_may_not_point_up(found: Check) -> None:
    assert found({**HIGH, "low/mod.rs": "pub use crate::high::B;\n"}) == [
        "tree: low/mod.rs:1 imports high/b.rs, but low is below high"
    ]


def test_a_crate_without_a_library_is_read_from_its_program(tmp_path: Path) -> None:
    for name, text in {"main.rs": "mod a;\nfn main() { a::f() }\n", "a.rs": "use crate::main;\n"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    floors = (Floor("low", ("a.rs",)), Floor("high", ("main.rs",)))
    assert problems(Tree("tree", tmp_path, read_rust, floors))[0] == (
        "tree: a.rs:1 imports main.rs, but low is below high"
    )
