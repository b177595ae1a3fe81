"""Two answers side by side, in a real browser."""

import pytest
from playwright.sync_api import Locator, Page, expect
from ui.scripted_server import ScriptedServer


@pytest.fixture
def compare(page: Page) -> Page:
    """The page at the comparison."""
    page.get_by_role("tab", name="Compare").click()
    return page


def side(page: Page, name: str) -> Locator:
    """One side."""
    return page.get_by_role("region", name=f"Side {name}", exact=True)


def ask_both(page: Page, text: str) -> None:
    """Sends a message to both sides."""
    page.get_by_label("Message to both sides").fill(text)
    page.keyboard.press("Enter")


def finished(page: Page) -> None:
    """Waits until both sides have answered."""
    expect(page.locator(".message.assistant[aria-busy=false]")).to_have_count(2)


def test_a_message_goes_to_both_sides_each_with_its_own_model_and_settings(
    page: Page, server: ScriptedServer
) -> None:
    server.models = [{"id": "penstock/demo"}, {"id": "other", "parent": "penstock/demo"}]
    page.reload()
    page.locator("#settings").get_by_label("Max tokens").fill("50")
    page.get_by_role("tab", name="Compare").click()
    side(page, "B").get_by_label("Model of side B").select_option("other")
    side(page, "B").get_by_text("Differs in").click()
    side(page, "B").get_by_label("Temperature").fill("0")
    side(page, "B").get_by_label("System prompt").fill("Be brief.")
    ask_both(page, "hello")
    finished(page)
    for name in "AB":
        expect(side(page, name).locator(".message.assistant")).to_contain_text("You said: hello")
    first, second = sorted(server.requests, key=lambda body: str(body["model"]), reverse=True)
    assert (first["model"], second["model"]) == ("penstock/demo", "other")
    assert first["messages"] == [{"role": "user", "content": "hello"}]
    assert second["messages"][0] == {"role": "system", "content": "Be brief."}
    assert "temperature" not in first
    assert second["temperature"] == 0
    assert first["max_tokens"] == second["max_tokens"] == 50


def test_each_side_goes_on_with_its_own_answers(compare: Page, server: ScriptedServer) -> None:
    server.script("left")
    server.script("right")
    ask_both(compare, "one")
    finished(compare)
    ask_both(compare, "two")
    expect(compare.locator(".message.assistant[aria-busy=false]")).to_have_count(4)
    answered = [body["messages"][1]["content"] for body in server.requests[2:]]
    assert sorted(answered) == ["left", "right"]


def test_stopping_stops_both(compare: Page, server: ScriptedServer) -> None:
    both = [server.script("half ", hold=True), server.script("half ", hold=True)]
    ask_both(compare, "go")
    expect(compare.locator(".message.assistant")).to_contain_text(["half", "half"])
    compare.keyboard.press("Escape")
    finished(compare)
    assert all(answer.left.wait(20) for answer in both)


def test_one_side_may_fail_and_the_other_goes_on(compare: Page, server: ScriptedServer) -> None:
    server.script(status=500, error={"error": {"message": "broken"}})
    server.script("fine")
    ask_both(compare, "go")
    finished(compare)
    expect(compare.locator("#compare-sides .problem")).to_have_count(1)
    expect(compare.locator("#compare-sides .message.assistant", has_text="fine")).to_have_count(1)


def test_a_reload_keeps_the_comparison_and_a_new_one_empties_it(compare: Page) -> None:
    ask_both(compare, "hello")
    finished(compare)
    compare.reload()
    finished(compare)
    assert compare.locator(".conversation").count() == 0, "a comparison is not a conversation of the list"
    compare.get_by_label("New comparison").click()
    expect(compare.locator("#compare-sides .message")).to_have_count(0)


PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


@pytest.mark.parametrize("context_options", [PHONE])
def test_on_a_phone_the_sides_stand_one_above_the_other(compare: Page) -> None:
    upper, lower = side(compare, "A").bounding_box(), side(compare, "B").bounding_box()
    assert upper is not None
    assert lower is not None
    assert upper["y"] + upper["height"] <= lower["y"] + 1
    assert compare.evaluate("document.documentElement.scrollWidth <= innerWidth")
