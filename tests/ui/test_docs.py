"""The page of the API, from the committed document: every operation is there and opens down to its fields."""

import json
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect
from ui.scripted_server import ScriptedServer

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "openapi.json"


def test_every_operation_is_listed_and_opens(
    open_page: Callable[[str], Page], server: ScriptedServer
) -> None:
    page = open_page(server.url.removesuffix("ui") + "docs")
    paths = json.loads(DOCUMENT.read_text())["paths"]
    operations = page.locator(".operation")
    expect(operations).to_have_count(sum(len(methods) for methods in paths.values()))

    chat = page.locator("#post_v1_chat_completions")
    chat.locator("summary").first.click()
    expect(chat).to_contain_text("curl -X POST")
    chat.get_by_text("ChatRequest", exact=True).click()
    expect(chat.locator("td", has_text="messages").first).to_contain_text("required")
    # A type inside of a type.
    chat.locator("summary", has_text="ChatMessage").first.click()
    expect(chat.get_by_text("tool_call_id")).to_be_visible()
