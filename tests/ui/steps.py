"""The steps that every test of the chat uses: ask, and read the answers."""

from playwright.sync_api import Page, expect


def ask(page: Page, text: str) -> None:
    """Types a question and sends it with Enter."""
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def answers(page: Page) -> list[str]:
    """The texts of all answers, once nothing streams any more."""
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    return [text.strip() for text in page.locator(".message.assistant > .markdown").all_inner_texts()]
