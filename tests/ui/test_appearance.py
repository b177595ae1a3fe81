"""Themes, phone width, keyboard; and the screenshot for the README."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from ui.scripted_server import ScriptedServer
from ui.steps import answers, ask

SCREENSHOT = Path(__file__).resolve().parents[2] / "docs" / "page.png"
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
DARK = {"viewport": {"width": 1280, "height": 860}, "color_scheme": "dark"}
TEXT_ON_GROUND = [
    *(["text", ground] for ground in ("bg", "surface", "accent-soft", "bad-soft", "warn-soft")),
    *(["muted", ground] for ground in ("bg", "surface", "sunken")),
    *(["accent", ground] for ground in ("bg", "surface", "accent-soft")),
    ["accent-text", "accent"],
    ["bad", "bad-soft"],
    ["warn", "warn-soft"],
]
QUESTION = "What is a penstock, and what pressure must it take?"
ANSWER = """A **penstock** is the pipe or gate that leads water from a reservoir to a turbine. It sets \
*how much* flows, and it carries the pressure of the whole column above it.

### Pressure at the foot

It grows with the head, `p = d·g·h`:

```python
def pressure(head_m: float, density: float = 1000.0) -> float:
    \"\"\"Static pressure in bar at the foot of a penstock.\"\"\"
    return density * 9.81 * head_m / 1e5

print(pressure(120))  # 11.8
```

| Head | Pressure | Typical turbine |
| ---: | ---: | --- |
| 20 m | 2.0 bar | Kaplan |
| 120 m | 11.8 bar | Francis |
| 600 m | 58.9 bar | Pelton |

1. Gates close slowly, to avoid *water hammer*.
2. A surge tank takes what is left of it.
"""


def background(page: Page) -> int:
    """Brightness of the page, 0 to 765."""
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(int(part) for part in re.findall(r"\d+", colour)[:3])


def chat_for_pictures(page: Page, server: ScriptedServer) -> None:
    """A conversation that shows what the page can do."""
    server.script(
        *re.findall(r"\s*\S+", ANSWER),
        reasoning=["The head sets the pressure; ", "give the formula and three examples."],
        delay_s=0.005,
        cached_tokens=128,
    )
    ask(page, QUESTION)
    answers(page)


@pytest.mark.parametrize("context_options", [DARK])
def test_follows_a_dark_system_and_can_be_switched(page: Page) -> None:
    assert background(page) < 150
    page.get_by_label("Use the light theme").click()
    assert background(page) > 600
    page.reload()
    assert background(page) > 600
    page.get_by_label("Use the dark theme").click()
    assert background(page) < 150


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_enough_contrast(page: Page, theme: str) -> None:
    page.evaluate("t => { document.documentElement.dataset.theme = t }", theme)
    pairs = page.evaluate(
        """(pairs) => {
          const style = getComputedStyle(document.documentElement);
          return pairs.map((pair) => [...pair, ...pair.map((name) => style.getPropertyValue(`--${name}`).trim())]);
        }""",
        TEXT_ON_GROUND,
    )
    for front, back, a, b in pairs:
        assert contrast(a, b) >= 4.5, f"{front} on {back}"


def contrast(first: str, second: str) -> float:
    """The contrast ratio of WCAG between two colours #rrggbb."""
    lighter, darker = sorted((luminance(first), luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    """Relative luminance of WCAG."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("context_options", [PHONE])
@pytest.mark.parametrize("view", ["Chat", "Compare", "Completion", "Status"])
def test_nothing_sticks_out_on_a_phone(page: Page, server: ScriptedServer, view: str) -> None:
    chat_for_pictures(page, server)
    page.get_by_role("tab", name=view).click()
    expect(page.locator("#facts")).to_contain_text("penstock/demo")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    wide = page.evaluate(
        """() => [...document.querySelectorAll('main *')]
             .filter((e) => !e.closest('pre, .table-scroll, svg, .visually-hidden'))
             .filter((e) => e.getBoundingClientRect().right > 391).map((e) => e.className || e.tagName)"""
    )
    assert wide == []
    small = page.evaluate(
        """() => [...document.querySelectorAll('header button, main button')].filter((e) => e.offsetParent
             && !e.closest('.code-head') && Math.min(e.offsetWidth, e.offsetHeight) < 28).map((e) => e.outerHTML)"""
    )
    assert small == [], "buttons must be large enough for a finger"


@pytest.mark.parametrize("context_options", [PHONE])
def test_drawers_on_a_phone_open_over_the_page_and_close(page: Page) -> None:
    settings = page.get_by_role("complementary", name="Settings")
    expect(settings).to_be_hidden()
    page.get_by_role("button", name="Settings").click()
    expect(settings).to_be_visible()
    expect(page.get_by_label("Model", exact=True)).to_be_focused()
    page.keyboard.press("Escape")
    expect(settings).to_be_hidden()
    expect(page.get_by_role("button", name="Settings")).to_be_focused()
    page.get_by_role("button", name="Conversations").click()
    expect(page.get_by_role("complementary", name="Conversations")).to_be_visible()
    page.get_by_role("button", name="New conversation").click()
    expect(page.get_by_role("complementary", name="Conversations")).to_be_hidden()


def test_works_by_keyboard_alone(page: Page, server: ScriptedServer) -> None:
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.keyboard.type("by keyboard")
    page.keyboard.press("Enter")
    assert answers(page) == ["You said: by keyboard"]
    page.get_by_role("tab", name="Chat").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Compare")).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Completion")).to_be_focused()
    expect(page.get_by_role("tabpanel", name="Completion")).to_be_visible()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tabpanel", name="Status")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("tabpanel", name="Completion")).to_be_visible()


def test_every_control_has_a_name(page: Page, server: ScriptedServer) -> None:
    chat_for_pictures(page, server)
    for view in ("Chat", "Compare", "Completion", "Status"):
        page.get_by_role("tab", name=view).click()
        nameless = page.evaluate(
            """() => [...document.querySelectorAll('button, input:not([hidden]), select, textarea, [role=region]')]
                 .filter((e) => !(e.ariaLabel || e.labels?.length || e.textContent.trim())).map((e) => e.outerHTML)"""
        )
        assert nameless == []


def flowing(stats: dict[str, Any]) -> None:
    """A server at work, for the picture."""
    now = stats["steps_total"] = stats["steps_total"] + 40
    stats.update(running=int(22 + 6 * math.sin(now / 300)), waiting=max(0, int(5 * math.sin(now / 170))))


def test_screenshot_for_the_readme(page: Page, server: ScriptedServer) -> None:
    """Writes docs/page.png, from which the README takes its picture, if it is not there."""
    server.on_stats = flowing
    for question in ("Name three kinds of turbine", "Why do gates close slowly?"):
        ask(page, question)
        answers(page)
        page.get_by_role("button", name="New conversation").click()
    chat_for_pictures(page, server)
    page.mouse.move(640, 5)
    picture = page.screenshot(animations="disabled", caret="hide")
    assert 20_000 < len(picture) < 400_000
    if not SCREENSHOT.exists():
        SCREENSHOT.parent.mkdir(exist_ok=True)
        SCREENSHOT.write_bytes(picture)
