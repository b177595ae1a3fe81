"""The page out of the router's binary, against a real server: that what it asks for is what the router speaks."""

import re
from collections.abc import Callable, Iterator

import pytest
from e2e.launched import Launched
from e2e.models import make_model
from playwright.sync_api import Page, expect
from ui.steps import ask


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    model = make_model(tmp_path_factory.mktemp("model"))
    with Launched(tmp_path_factory.mktemp("run"), f"--model-id={model}", "--dtype=float32") as launched:
        launched.wait_until_serving()
        assert launched.address
        yield "http://{}:{}".format(*launched.address)


def test_browsers_get_the_page_and_probes_their_answer(
    open_page: Callable[[str], Page], address: str
) -> None:
    page = open_page(address)
    expect(page.get_by_role("heading", name="Ask the model")).to_be_visible()
    probe = page.request.get(address, headers={"accept": "*/*"})
    assert (probe.status, probe.body()) == (200, b"")


def test_chats_completes_and_shows_the_status(open_page: Callable[[str], Page], address: str) -> None:
    page = open_page(f"{address}/ui")
    expect(page.locator("#pill")).to_have_text("Ready")
    page.locator("#settings").get_by_label("Max tokens").fill("8")
    # Else chance may draw the token that ends the answer.
    page.locator("#settings").get_by_label("Temperature").fill("0")
    ask(page, "hello")
    stats = page.get_by_label("Measurements of this answer")
    expect(stats).to_contain_text("8 tokens", timeout=30_000)
    expect(stats).to_contain_text("to first token")
    expect(stats).to_contain_text("in prompt")

    page.get_by_role("tab", name="Completion").click()
    page.get_by_role("button", name="Complete").click()
    expect(page.get_by_label("Measurements of this answer").last).to_contain_text("8 tokens", timeout=30_000)
    page.locator(".token").first.hover()
    expect(page.get_by_role("list", name="Alternatives").get_by_role("button").first).to_contain_text("%")

    page.get_by_role("tab", name="Status").click()
    facts = page.locator("#facts")
    expect(facts).to_contain_text("Requests: success2")
    expect(page.locator(".plot").filter(has_text="Step time").locator(".legend b").first).to_have_text(
        re.compile(r"\d")
    )


def test_a_refusal_of_the_router_is_shown_in_its_words(
    open_page: Callable[[str], Page], address: str
) -> None:
    page = open_page(address)
    page.locator("#settings").get_by_label("Frequency penalty").fill("9")
    ask(page, "hello")
    expect(page.get_by_role("alert")).to_contain_text("The server refused this request")
    expect(page.get_by_role("alert")).to_contain_text("frequency_penalty")
