"""The completion tab: shades, alternatives by pointer and keyboard, going on from another token."""

import pytest
from playwright.sync_api import Page, expect
from ui.scripted_server import ScriptedServer


@pytest.fixture(autouse=True)
def open_tab(page: Page) -> None:
    page.get_by_role("tab", name="Completion").click()


def complete(page: Page, prompt: str) -> None:
    page.get_by_label("Prompt", exact=True).fill(prompt)
    page.get_by_role("button", name="Complete").click()
    expect(page.get_by_label("Measurements of this answer")).to_be_visible()


def test_shades_tokens_by_probability(page: Page, server: ScriptedServer) -> None:
    server.script(" there", " was", " a", " river")
    complete(page, "Once")
    expect(page.locator(".tokens")).to_have_text("Once there was a river")
    shades = [
        name.split("-")[1] for name in page.locator(".token").evaluate_all("t => t.map(e => e.classList[1])")
    ]
    assert shades == ["0", "5", "4", "3"]
    body = server.requests[-1]
    assert (body["prompt"], body["logprobs"], body["stream"]) == ("Once", 5, True)


def test_shows_alternatives_and_goes_on_from_one(page: Page, server: ScriptedServer) -> None:
    server.script(" there", " was")
    complete(page, "Once")
    page.locator(".token").nth(1).hover()
    rows = page.get_by_role("list", name="Alternatives").get_by_role("button")
    expect(rows).to_have_count(4)
    expect(rows.first).to_have_text("␣else33.3 %")
    rows.first.click()
    expect(page.get_by_label("Prompt", exact=True)).to_have_value("Once there else")
    expect(page.locator(".tokens")).to_contain_text("You said: Once there else")


def test_tokens_can_be_reached_by_keyboard(page: Page, server: ScriptedServer) -> None:
    server.script(" there", " was", " a")
    complete(page, "Once")
    page.locator(".token").first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".token").nth(1)).to_be_focused()
    expect(page.locator(".alternatives")).to_contain_text("1.8 %")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Prompt", exact=True)).to_have_value("Once there else")


def test_stops_and_says_so(page: Page, server: ScriptedServer) -> None:
    answer = server.script(" there", hold=True)
    page.get_by_role("button", name="Complete").click()
    expect(page.locator(".token")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(page.get_by_label("Measurements of this answer")).to_contain_text("stopped")
    assert answer.left.wait(20)


def test_shows_the_servers_error(page: Page, server: ScriptedServer) -> None:
    server.script(
        status=422, error={"error": "prompt has 9 tokens, the limit is 8", "error_type": "validation"}
    )
    page.get_by_role("button", name="Complete").click()
    expect(page.get_by_role("alert")).to_contain_text("prompt has 9 tokens, the limit is 8")


def test_shades_can_be_switched_off(page: Page, server: ScriptedServer) -> None:
    server.script(" there", " was")
    complete(page, "Once")
    page.get_by_label("Shades", exact=True).uncheck()
    colour = page.locator(".token").nth(1).evaluate("t => getComputedStyle(t).backgroundColor")
    assert colour == "rgba(0, 0, 0, 0)"
