"""Sharing a conversation as Markdown, in a real browser."""

from pathlib import Path

from playwright.sync_api import Page, expect
from ui.scripted_server import ScriptedServer
from ui.steps import answers, ask

CALL = {"index": 0, "id": "c1", "function": {"name": "gate", "arguments": '{"open": true}'}}


def share(page: Page) -> str:
    """Shares the only conversation, and returns what was copied."""
    page.locator("#conversation-list li").hover()
    page.get_by_label("as Markdown").click()
    expect(page.locator(".toast")).to_contain_text("Copied as Markdown")
    text: str = page.evaluate("navigator.clipboard.readText()")
    return text


def test_a_conversation_is_copied_as_markdown(page: Page, server: ScriptedServer) -> None:
    page.get_by_label("System prompt of this conversation").fill("Be brief.")
    server.script("It is **open**.", reasoning=["Look at\n", "the gate."])
    ask(page, "Is the gate open?")
    answers(page)
    assert share(page) == (
        "# Is the gate open?\n\n## System prompt\n\nBe brief.\n\n## You\n\nIs the gate open?\n\n"
        "## Model\n\n> Look at\n> the gate.\n\nIt is **open**.\n"
    )


def test_tool_calls_and_their_results_are_shared(page: Page, server: ScriptedServer) -> None:
    server.script(tool_calls=[CALL], finish_reason="tool_calls")
    ask(page, "Open it")
    page.get_by_label("Result of gate").fill("done")
    page.get_by_role("button", name="Send result").click()
    answers(page)
    text = share(page)
    assert 'Calls `gate`:\n\n```json\n{"open": true}\n```' in text
    assert "## Tool result of gate\n\n```\ndone\n```" in text


def test_the_markdown_is_offered_as_a_file(page: Page, tmp_path: Path) -> None:
    ask(page, "What/is: this?")
    answers(page)
    text = share(page)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as a file").click()
    assert saved.value.suggested_filename == "What-is-this.md"
    saved.value.save_as(tmp_path / "saved.md")
    assert (tmp_path / "saved.md").read_text() == text
