"""A real browser for the tests of the page, and a check that no test caused an error or a foreign request.

Needs Debian's `chromium` (or any Chrome) and playwright from PyPI. Without them the tests are skipped, and say why; in
CI (the variable `CI` is set) they fail instead.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from addresses_lock import addresses_stay
from ui.scripted_server import ScriptedServer

try:
    from playwright.sync_api import Browser, Page, Playwright, expect, sync_playwright
except ImportError:  # pragma: no cover
    collect_ignore_glob = ["test_*.py"]
    if os.environ.get("CI"):
        raise

ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# The shell is the same browser without windows, and starts in half the time.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str:
    """The browser's path, or a skip."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        refuse = pytest.fail if os.environ.get("CI") else pytest.skip
        refuse("no Chromium on this machine: apt-get install chromium")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def playwright_() -> Iterator[Playwright]:
    """Playwright itself. It runs an event loop in this thread while it is there, so that no other file's test could."""
    with sync_playwright() as playwright:
        # Only a bound: a loaded machine is slow, and a test that passes does not wait for it.
        expect.set_options(timeout=20_000)
        yield playwright


@pytest.fixture(scope="module")
def browser(playwright_: Playwright) -> Iterator[Browser]:
    """One browser for a file; each test has a context of its own."""
    browser = playwright_.chromium.launch(executable_path=find_chromium(), args=ARGS)
    yield browser
    browser.close()


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """A server of the test's own."""
    server = ScriptedServer()
    yield server
    server.close()


@pytest.fixture
def context_options() -> dict[str, Any]:
    """The options of a test's browser window; overridden by `pytest.mark.parametrize`."""
    return {"viewport": {"width": 1280, "height": 860}, "reduced_motion": "reduce"}


@pytest.fixture
def wrong() -> list[str]:
    """Script errors, policy violations and requests to other hosts; a test that causes one on purpose clears it."""
    return []


@pytest.fixture
def open_page(
    browser: Browser, context_options: dict[str, Any], wrong: list[str]
) -> Iterator[Callable[[str], Page]]:
    """Opens an address in a new window. Fails the test for anything in `wrong`."""
    context = browser.new_context(**context_options)
    context.grant_permissions(["clipboard-read", "clipboard-write"])

    def open_page(url: str) -> Page:
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: _note_console(message.type, message.text, wrong))
        page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: _note_request(request.url, wrong))
        page.goto(url)
        return page

    with addresses_stay():
        yield open_page
    context.close()
    assert wrong == []


@pytest.fixture
def page(open_page: Callable[[str], Page], server: ScriptedServer) -> Page:
    """The page of the scripted server."""
    return open_page(server.url)


def _note_console(kind: str, text: str, wrong: list[str]) -> None:
    # A refused or failed request is logged by the browser itself; tests that cause one check what the page shows.
    if kind in {"error", "warning"} and not text.startswith("Failed to load resource"):
        wrong.append(text)


def _note_request(url: str, wrong: list[str]) -> None:
    parts = urlsplit(url)
    if parts.scheme not in {"blob", "data"} and parts.hostname != "127.0.0.1":
        wrong.append(f"request to {url}")
