"""The output of a model stays text: no element, script, request or link of its own making."""

import re

from playwright.sync_api import Page, expect
from ui.scripted_server import ScriptedServer
from ui.steps import answers, ask

INJECTIONS = [
    "<img src=x onerror=alert(1)>",
    "text <img src=x onerror=alert(1)> text",
    "</script><script>alert(1)</script>",
    "<svg/onload=alert(1)>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<style>body{display:none}</style>",
    "<a href='javascript:alert(1)'>x</a>",
    "[click](javascript:alert(1))",
    "[click](JaVaScRiPt:alert(1))",
    "[click](java&#10;script:alert(1))",
    "[click](&#106;avascript:alert(1))",
    "[click](data:text/html,<script>alert(1)</script>)",
    "[click](vbscript:x)",
    "[click](/generate)",
    "[click](//evil.example/x)",
    "<javascript:alert(1)>",
    "![x](javascript:alert(1))",
    "![x](https://evil.example/pixel.png)",
    "[x]: javascript:alert(1)\n\n[x]",
    "```html\n<img src=x onerror=alert(1)>\n```",
    "`<b onclick=alert(1)>`",
    "| <img src=x onerror=alert(1)> |\n| --- |\n| <script>alert(1)</script> |",
    '```"><img src=x onerror=alert(1)>\nx\n```',
    "&lt;img src=x onerror=alert(1)&gt;",
    "> " * 3000 + "deep",
]

ALLOWED = re.compile(
    r"p|strong|em|del|code|pre|br|hr|a|ul|ol|li|h[3-6]|blockquote|table|thead|tbody|tr|th|td|div|span|input|button|svg|use"
)


def test_what_looks_like_html_stays_text(page: Page, server: ScriptedServer) -> None:
    thread = page.locator("#thread")
    for text in INJECTIONS:
        server.script(*text[:400], text[400:])
        page.get_by_role("button", name="New conversation").click()
        ask(page, text[:400])
        # The line of a stream that goes on has none: its end may be shown as a link without an address.
        expect(page.locator(".message.assistant footer .actions")).to_be_visible()
        tags = set(
            thread.evaluate("t => [...t.querySelectorAll('.markdown *')].map(e => e.tagName.toLowerCase())")
        )
        assert all(ALLOWED.fullmatch(tag) for tag in tags), (tags, text[:80])
        for href in thread.evaluate("t => [...t.querySelectorAll('a')].map(a => a.getAttribute('href'))"):
            assert href.startswith(("https://", "http://", "mailto:")), text[:80]
        names = "[...t.querySelectorAll('*')].flatMap(e => e.getAttributeNames())"
        handlers = f"t => {names}.filter(n => n.startsWith('on'))"
        assert thread.evaluate(handlers) == [], text[:80]
    page.reload()
    expect(page.locator(".conversation")).to_have_count(len(INJECTIONS))


def test_injected_text_is_shown_as_it_was_written(page: Page, server: ScriptedServer) -> None:
    server.script("<img src=x onerror=alert(1)> and [click](javascript:alert(1)) &lt;b&gt;")
    ask(page, "go")
    assert answers(page) == ["<img src=x onerror=alert(1)> and [click](javascript:alert(1)) <b>"]


def test_names_from_the_server_and_titles_stay_text(page: Page, server: ScriptedServer) -> None:
    evil = "<img src=x onerror=alert(1)>"
    server.models[0]["id"] = evil
    server.stats["model_id"] = evil
    server.stats["requests_total"] = {evil: 1}
    server.script(tool_calls=[{"index": 0, "id": "1", "function": {"name": evil, "arguments": evil}}])
    page.reload()
    ask(page, evil)
    answers(page)
    server.script(status=422, error={"error": evil})
    ask(page, "again")
    expect(page.get_by_role("alert")).to_contain_text(evil)
    page.get_by_role("tab", name="Status").click()
    expect(page.locator("#facts")).to_contain_text(evil)
    assert page.locator("img").count() == 1, "the logo"


def test_links_open_apart_and_tell_where_they_go(page: Page, server: ScriptedServer) -> None:
    server.script("[docs](https://example.com/a?b=1&c=2)")
    ask(page, "link")
    answers(page)
    link = page.get_by_role("link", name="docs")
    assert link.get_attribute("href") == "https://example.com/a?b=1&c=2"
    assert link.get_attribute("rel") == "noopener noreferrer nofollow"
    assert link.get_attribute("target") == "_blank"
    assert link.get_attribute("title") == "https://example.com/a?b=1&c=2"


def test_the_policy_forbids_what_the_page_never_does(page: Page, wrong: list[str]) -> None:
    with page.expect_console_message(lambda message: "TrustedHTML" in message.text):
        refused = page.evaluate(
            """() => {
              try { document.createElement('div').innerHTML = '<b>x</b>'; return false } catch { return true }
            }"""
        )
    assert refused, "trusted types must be enforced"
    assert "TrustedHTML" in " ".join(wrong)
    wrong.clear()
