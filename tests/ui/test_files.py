"""Files of text in a message, in a real browser: chosen, dropped, pasted, refused, sent, kept."""

from typing import Any

from playwright.sync_api import Page, expect
from ui.scripted_server import ScriptedServer
from ui.steps import answers, ask

CODE = {"name": "gate.py", "mimeType": "text/x-python", "buffer": b"def open_gate():\n    return 1\n"}
NOTES = {"name": "notes.md", "mimeType": "text/markdown", "buffer": b"```sh\nls\n```\n"}
# Drops or pastes a file of a name and a text on an element.
DROP = """(element, [kind, name, text]) => {
  const data = new DataTransfer();
  data.items.add(new File([text], name));
  const event = kind === 'paste'
    ? new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true })
    : new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true });
  element.dispatchEvent(event);
}"""


def choose(page: Page, *files: dict[str, Any]) -> None:
    """Chooses files with the button of the chat's composer."""
    with page.expect_file_chooser() as chooser:
        page.locator("#chat-composer").get_by_label("Add files of text").click()
    chooser.value.set_files(list(files))  # type: ignore[arg-type]


def test_chosen_files_are_sent_as_code_after_the_text(page: Page, server: ScriptedServer) -> None:
    choose(page, CODE, NOTES)
    chips = page.locator("#chat-composer .attachments li")
    expect(chips).to_have_text(["gate.py", "notes.md"])
    ask(page, "What is this?")
    answers(page)
    expect(chips).to_have_count(0)
    sent = server.requests[-1]["messages"][-1]["content"]
    assert sent == (
        "What is this?\n\n"
        "File `gate.py`:\n\n```py\ndef open_gate():\n    return 1\n```\n\n"
        "File `notes.md`:\n\n````md\n```sh\nls\n```\n````"
    ), "a fence must be longer than those in the file"
    question = page.locator(".message.user")
    expect(question.locator(".bubble")).to_have_text("What is this?")
    expect(question.locator("summary")).to_have_text(["gate.py", "notes.md"])


def test_a_dropped_file_alone_is_a_message_and_stays_after_a_reload(
    page: Page, server: ScriptedServer
) -> None:
    view = page.locator("#view-chat")
    view.evaluate(DROP, ["dragover", "a.txt", "water"])
    expect(view).to_have_class("view dropping")
    view.evaluate(DROP, ["drop", "a.txt", "water"])
    expect(view).to_have_class("view")
    expect(page.get_by_label("Send message").first).to_be_enabled()
    page.reload()
    expect(page.locator("#chat-composer .attachments li")).to_have_text("a.txt")
    page.locator("#chat-composer").get_by_label("Send message").click()
    answers(page)
    assert server.requests[-1]["messages"] == [
        {"role": "user", "content": "File `a.txt`:\n\n```txt\nwater\n```"}
    ]
    page.reload()
    expect(page.locator(".message.user summary")).to_have_text("a.txt")
    expect(page.locator(".conversation")).to_have_text("a.txt")


def test_a_pasted_file_is_added_and_can_be_removed(page: Page) -> None:
    page.get_by_label("Message", exact=True).evaluate(DROP, ["paste", "b.csv", "1,2"])
    chips = page.locator("#chat-composer .attachments li")
    expect(chips).to_have_text("b.csv")
    page.get_by_label("Remove b.csv").click()
    expect(chips).to_have_count(0)
    expect(page.locator("#chat-composer").get_by_label("Send message")).to_be_disabled()


def test_what_is_no_text_or_too_large_is_refused_by_name(page: Page) -> None:
    picture = {"name": "a.png", "mimeType": "image/png", "buffer": b"\x89PNG\r\n\x1a\n\xff\xfe"}
    zeros = {"name": "z.bin", "mimeType": "application/octet-stream", "buffer": b"a\0b"}
    large = {"name": "large.txt", "mimeType": "text/plain", "buffer": b"x" * (256 * 1024 + 1)}
    choose(page, picture, zeros, large, CODE)
    toast = page.locator(".toast")
    expect(toast).to_contain_text("a.png is not a file of text.")
    expect(toast).to_contain_text("z.bin is not a file of text.")
    expect(toast).to_contain_text("large.txt is larger than 256 KiB.")
    expect(page.locator("#chat-composer .attachments li")).to_have_text("gate.py")


def test_more_files_than_a_message_takes(page: Page) -> None:
    choose(page, *[{**CODE, "name": f"{number}.py"} for number in range(12)])
    expect(page.locator("#chat-composer .attachments li")).to_have_count(10)
    expect(page.locator(".toast")).to_contain_text("at most 10 files")


def test_an_edited_question_keeps_its_files(page: Page, server: ScriptedServer) -> None:
    choose(page, CODE)
    ask(page, "first")
    answers(page)
    page.locator(".message.user").hover()
    page.get_by_label("Edit message").click()
    page.locator(".message.user textarea").fill("second")
    page.keyboard.press("Enter")
    answers(page)
    sent = server.requests[-1]["messages"]
    assert len(sent) == 1
    assert sent[0]["content"].startswith("second\n\nFile `gate.py`:")
