"""The pages of docs/ against the sources: the paths they name, the messages they quote, the dependencies they list."""

import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from benchmarks.way.page import PAGE, listed_files

REPOSITORY = Path(__file__).parents[1]
PAGES = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md")]
PAGES += sorted((REPOSITORY / "docs").glob("*.md"))
PAGE_NAMES = [str(page.relative_to(REPOSITORY)) for page in PAGES]

_FENCE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
# `text`, or `` text with ` in it ``.
_SPAN = re.compile(r"``\s(.+?)\s``|`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def text_of(name: str) -> str:
    return (REPOSITORY / name).read_text(encoding="utf-8")


def spans(text: str) -> list[str]:
    return [double or single for double, single in _SPAN.findall(text)]


# Paths

_ROOTS = (
    "router",
    "launcher",
    "server",
    "kernels",
    "proto",
    "tests",
    "benchmarks",
    "docs",
    "deploy",
    "demo",
    "examples",
)
_PATH = re.compile(rf"(?:{'|'.join(_ROOTS)})/[\w./*-]*")


def paths(text: str) -> list[str]:
    """The paths that are written as code and begin with a folder of this repository."""
    return [span for span in spans(text) if _PATH.fullmatch(span)]


def test_a_path_is_distinguished_from_other_code() -> None:
    text = "`router/src/lib.rs`, `docs/*.md`, `kernels/`; not `org/model`, `docs/x y`, `/docs/`"
    assert paths(text) == ["router/src/lib.rs", "docs/*.md", "kernels/"]


@pytest.mark.parametrize("name", PAGE_NAMES)
def test_every_path_on_a_page_exists(name: str) -> None:
    missing = [path for path in paths(text_of(name)) if not any(REPOSITORY.glob(path.rstrip("/")))]
    assert not missing


@pytest.mark.parametrize("example", ["min_p", "tgi_preemptions"])
def test_the_files_of_an_example_have_the_example_in_them(example: str) -> None:
    """In "Where does it go?": the rows are followed by people who have nothing but the row."""
    [section] = re.findall(
        rf"^### .*`{example}`$(.*?)^### ", text_of("CONTRIBUTING.md"), re.MULTILINE | re.DOTALL
    )
    files = [path for path in paths(section) if (REPOSITORY / path).is_file() and "/tests/it/" not in path]
    name = example.removeprefix("tgi_")
    texts = {path: (REPOSITORY / path).read_text(encoding="utf-8").lower() for path in files}
    assert len(files) > 4
    assert [path for path, text in texts.items() if name not in text] == []


def anchors(page: Path) -> set[str]:
    """The anchors of headings: lower case, spaces to dashes, other punctuation dropped."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", PAGE_NAMES)
def test_every_link_on_a_page_leads_somewhere(name: str) -> None:
    page = REPOSITORY / name
    broken = []
    for link in _LINK.findall(_FENCE.sub("", text_of(name))):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        is_page = target.suffix == ".md" and anchor
        if not target.exists() or (is_page and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_every_page_is_in_the_index() -> None:
    linked = set(_LINK.findall(text_of("docs/README.md")))
    assert {page.name for page in (REPOSITORY / "docs").glob("*.md")} - {"README.md"} <= linked


# The way of a request

# In the order in which the page counts their files.
_PARTS = ("router/src/", "router/scheduler/", "endpoint/", "server/", "kernels/")


def test_a_listed_name_is_of_the_folder_before_it() -> None:
    assert listed_files("| `a/b.rs`, `c.rs` | takes `d.rs` |\n| a | `e/f.rs` |") == ["a/b.rs", "a/c.rs"]


def test_the_way_of_a_request_has_as_many_files_as_it_says() -> None:
    text = PAGE.read_text(encoding="utf-8")
    files = listed_files(text)
    assert len(set(files)) == len(files)
    assert [file for file in files if not (REPOSITORY / file).is_file()] == []
    said = re.search(r"\*\*(\d+) files\*\*: [^.]+\.", text)
    assert said is not None
    of_parts = [sum(file.startswith(folder) for file in files) for folder in _PARTS]
    assert [int(number) for number in re.findall(r"\d+", said[0])] == [len(files), *of_parts]
    assert f"{len(files)} files" in text_of("docs/ARCHITECTURE.md")


def test_the_way_of_a_request_has_as_many_forms_as_it_says_each_with_a_reason() -> None:
    way, _, reasons = PAGE.read_text(encoding="utf-8").partition("## Why each form is there")
    [(num_forms, num_changes)] = re.findall(r"\*\*(\d+) forms\*\*, so (\d+) changes", way)
    assert int(num_changes) == int(num_forms) - 1
    numbers = [str(number) for number in range(1, int(num_forms) + 1)]
    assert set(re.findall(r"\((\d+)\)", way)) == set(numbers)
    assert re.findall(r"^\| (\d+) \|", reasons, re.MULTILINE) == numbers
    assert f"{num_forms} forms" in text_of("docs/ARCHITECTURE.md")


# Quoted messages

TROUBLESHOOTING = "docs/troubleshooting.md"
# A quotation that is little more than placeholders would be found anywhere.
_LEAST_LETTERS = 5


def quoted_messages(text: str) -> list[str]:
    """The first code in each cell below a heading `message`, and what holds a placeholder below `symptom`."""
    found: list[str] = []
    column, heading = None, ""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("|") else []
        cells = [cell.strip("| ") for cell in cells]
        if not cells:
            column = None
        elif column is None:
            heading = next((cell for cell in cells if cell in ("message", "symptom")), "")
            column = cells.index(heading) if heading else -1
        elif column >= 0 and not cells[0].startswith("---"):
            quoted = spans(cells[column])
            if heading == "message":
                assert quoted, f"no message is quoted in: {line}"
                found.append(quoted[0])
            else:
                found += [span for span in quoted if "…" in span]
    return found


# The break of a string that goes over several lines, by the suffix of its file.
_BREAKS = {".rs": re.compile(r"\\\n\s*"), ".py": re.compile(r"[\"']\s*\n\s*f?[\"']")}


@cache
def all_sources() -> str:
    """Rust and Python with strings that go over several lines in one piece."""
    files = [*REPOSITORY.glob("router/**/*.rs"), *REPOSITORY.glob("launcher/src/**/*.rs")]
    files += REPOSITORY.glob("server/penstock_server/**/*.py")
    texts = (_BREAKS[file.suffix].sub("", file.read_text(encoding="utf-8")) for file in files)
    return "\n".join(texts).replace('\\"', '"')


def occurs(message: str, source: str) -> bool:
    """Whether a source has these words; each `…` stands for what the code fills in."""
    # A part at an end that the code fills in says nothing, and to look for it takes long.
    words = message.strip("… ").split("…")
    assert sum(character.isalpha() for word in words for character in word) >= _LEAST_LETTERS, message
    return re.search(r"[^\n]{1,100}?".join(map(re.escape, words)), source) is not None


def test_a_message_is_found_with_its_placeholders_and_a_wrong_one_is_not() -> None:
    source = 'format!("cannot open {name}: {reason}; try --again")'
    assert occurs("cannot open …: …; try --again", source)
    assert not occurs("cannot close …: …; try --again", source)
    assert not occurs("cannot open …; use --again", source)


def test_messages_are_read_from_tables() -> None:
    text = (
        "| status | message |\n| --- | --- |\n| 1 `k` | `a b` |\n\n| symptom |\n| --- |\n| `x` and `y …` |\n"
    )
    assert quoted_messages(text) == ["a b", "y …"]


def test_every_quoted_message_is_one_of_the_code() -> None:
    messages = quoted_messages(text_of(TROUBLESHOOTING))
    assert len(messages) > 60
    assert not [message for message in messages if not occurs(message, all_sources())]


# Flags and metrics


def flags_of_ours() -> set[str]:
    """The flags in docs/flags.md, which a test of the launcher compares with its parser."""
    return set(re.findall(r"`(--[\w-]+)`", text_of("docs/flags.md")))


def test_every_flag_that_replaces_one_of_vllm_exists() -> None:
    table = text_of("docs/moving-from-vllm.md").split("## Flags\n")[1].split("\n## ")[0]
    ours = [row.split(" | ")[1] for row in table.splitlines() if row.startswith("| ") and " | " in row]
    named = {span.split()[0] for cell in ours for span in spans(cell) if span.startswith("--")}
    assert len(named) > 20
    assert not named - flags_of_ours()


@pytest.mark.parametrize("name", PAGE_NAMES)
def test_every_metric_on_a_page_is_one_of_the_router(name: str) -> None:
    metrics = {re.split(r"[{ *]", span)[0] for span in spans(text_of(name)) if span.startswith("tgi_")}
    # For a histogram, a page may name the metrics that Prometheus derives from it.
    names = ((metric, re.sub(r"_(sum|count|bucket)$", "", metric)) for metric in metrics)
    assert not [name for name, histogram in names if f'"{histogram}' not in all_sources()]


# Dependencies


def listed(heading: str) -> set[str]:
    """The names in the first column of the table below a heading of docs/dependencies.md."""
    section = text_of("docs/dependencies.md").split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \|", section, re.MULTILINE)[2:]
    return {name for row in rows for name in row.split(", ")}


def declared_crates() -> set[str]:
    crates = tomllib.loads(text_of("Cargo.toml"))["workspace"]["dependencies"]
    return {name for name, crate in crates.items() if not (isinstance(crate, dict) and "path" in crate)}


def declared_packages() -> set[str]:
    names = []
    for file in ("pyproject.toml", "kernels/pyproject.toml", "endpoint/pyproject.toml"):
        declared = tomllib.loads(text_of(file))
        names += declared["build-system"]["requires"] + declared["project"]["dependencies"]
        for extra in declared["project"].get("optional-dependencies", {}).values():
            names += extra
    return {re.split(r"[^\w-]", name)[0] for name in names}


def test_every_crate_has_its_line_and_every_line_its_crate() -> None:
    assert listed("Crates") == declared_crates()


def test_every_package_has_its_line_and_every_line_its_package() -> None:
    needed, others = (
        listed("Python packages of the server and the kernels"),
        listed("Python packages that are not needed to serve"),
    )
    assert needed | others == declared_packages()
    assert not needed & others
