"""Markdown as elements of the page: each construct, links, tables and tasks, deep nesting, and hostile texts."""

import pytest
from playwright.sync_api import Page

# Shows texts and tells the elements of each, in a notation without attributes but those named.
SHOW = """async ([texts, names]) => {
  const { MarkdownView } = await import('/ui/js/markdown/view.js');
  const write = (node) => {
    if (node.nodeType === Node.TEXT_NODE) return node.data;
    const given = names.filter((name) => node.hasAttribute(name)).map((name) => ` ${name}=${node.getAttribute(name)}`);
    return `<${node.localName}${given.join('')}>${[...node.childNodes].map(write).join('')}</${node.localName}>`;
  };
  return texts.map((text) => {
    const root = document.createElement('div');
    new MarkdownView(root).update(text);
    for (const table of root.querySelectorAll('.table-scroll')) table.replaceWith(...table.childNodes);
    for (const head of root.querySelectorAll('.code-head')) head.remove();
    return [...root.childNodes].map(write).join('');
  });
}"""

CONSTRUCTS = [
    ("# one\n\n###### six", "<h3>one</h3><h6>six</h6>"),
    ("Two\n===", "<h3>Two</h3>"),
    ("a\nb  \nc\\\nd", "<p>a\nb<br></br>c<br></br>d</p>"),
    (
        "*a* **b** ***c*** ~~d~~ `e`",
        "<p><em>a</em> <strong>b</strong> <em><strong>c</strong></em> <del>d</del> <code>e</code></p>",
    ),
    ("> a\n> > b", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>"),
    ("- a\n- b\n  - c", "<ul><li><p>a</p></li><li><p>b</p><ul><li><p>c</p></li></ul></li></ul>"),
    ("- a\n\n- b", "<ul><li><p>a</p></li><li><p>b</p></li></ul>"),
    ("3. a\n4. b", "<ol start=3><li><p>a</p></li><li><p>b</p></li></ol>"),
    ("42.", "<p class=plain>42.</p>"),
    (
        "- [x] a\n- [ ] b\n- [y] c\n- [x]",
        "<ul><li class=task><p><input type=checkbox></input>a</p></li>"
        "<li class=task><p><input type=checkbox></input>b</p></li><li><p>[y] c</p></li><li><p>[x]</p></li></ul>",
    ),
    ("```py x\na\n```", "<div class=code><pre><code>a</code></pre></div>"),
    ("    a\n\n    b\n\nc", "<div class=code><pre><code>a\n\nb</code></pre></div><p>c</p>"),
    ("a\n\n***", "<p>a</p><hr></hr>"),
    ("&lt;b&gt; &eacute;&#233;&#xe9;&pi;&nosuch;&#0;", "<p><b> éééπ&nosuch;\ufffd</p>"),
    ("\\*a\\* \\a", "<p>*a* \\a</p>"),
    ("<b>*x*</b>", "<p><b><em>x</em></b></p>"),
    ("<div>\n  *x*\n</div>\n\n*y*", "<p class=plain><div>\n  *x*\n</div></p><p><em>y</em></p>"),
]

LINKS = [
    ("[a *b*](https://e.org/x)", "<p><a href=https://e.org/x>a <em>b</em></a></p>"),
    ("[a](<https://e.org/x y> 'title')", "<p><a href=https://e.org/x%20y>a</a></p>"),
    ("[a][B]\n\n[b]: https://e.org", "<p><a href=https://e.org/>a</a></p>"),
    (
        "<https://e.org> https://e.org/a_b_.",
        "<p><a href=https://e.org/>https://e.org</a> <a href=https://e.org/a_b>https://e.org/a_b</a>_.</p>",
    ),
    ("[a](/x) [b](javascript:x)", "<p>[a](/x) [b](javascript:x)</p>"),
    ("<irc://e.org>", "<p><irc://e.org></p>"),
    ("![pic](https://e.org/p.png)", "<p><a href=https://e.org/p.png>Image: pic</a></p>"),
    ("![](https://e.org/p.png)", "<p><a href=https://e.org/p.png>Image: https://e.org/p.png</a></p>"),
    ("[![pic](https://e.org/p.png)](https://e.org)", "<p><a href=https://e.org/>Image: pic</a></p>"),
    ("[a [b](https://e.org/b)](/a)", "<p>[a <a href=https://e.org/b>b</a>](/a)</p>"),
]

TABLES = [
    (
        "before\n| a | b |\n| :-: | --: |\n| 1 \\| `x\\|y` | *2* | 3 |\n| 4\n\nafter",
        "<p>before</p><table><thead><tr><th class=align-center>a</th><th class=align-right>b</th></tr></thead>"
        "<tbody><tr><td class=align-center>1 | <code>x|y</code></td><td class=align-right><em>2</em></td></tr>"
        "<tr><td class=align-center>4</td></tr></tbody></table><p>after</p>",
    ),
    (
        "a | b\n- | -\n1 | 2",
        "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr></tbody></table>",
    ),
    ("| a | b |\n| - |\n", "<p>| a | b |\n| - |</p>"),
    (
        "| a |\n| - |\n> b",
        "<table><thead><tr><th>a</th></tr></thead><tbody></tbody></table><blockquote><p>b</p></blockquote>",
    ),
    ("a\n- | -", "<p>a</p><ul><li><p>| -</p></li></ul>"),
]

# Each would take minutes, or exhaust the stack, where time or depth grew faster than the text.
HOSTILE = [
    *(mark * 100_000 for mark in "[]*_>`~<!&\\#|-(\t"),
    *(
        "a**" * 30_000,
        "**a" * 30_000,
        "*a_ " * 25_000,
        "*a **b " * 15_000,
        "_a*b" * 25_000,
        "***a" * 20_000 + "***" * 20_000,
    ),
    *(
        "*" * 50_000 + "a" + "*" * 50_000,
        "~~a" * 30_000,
        "[a](" * 25_000,
        "[a](b" * 20_000,
        '[a](b "' * 15_000,
        "[a](<b" * 15_000,
    ),
    *(
        "![" * 50_000,
        "![" * 20_000 + "](a)" * 20_000,
        "[" * 50_000 + "](https://e.org)" * 5_000,
        "[a][" * 25_000,
        "[a] " * 25_000,
    ),
    *(
        "`" + " ``" * 30_000,
        "".join("`" * n + " " for n in range(440)),
        "<a " * 30_000,
        '<a b="' * 15_000,
        "<!--" * 25_000,
    ),
    *(
        "<?" * 50_000,
        "<![CDATA[" * 10_000,
        "<!x" * 30_000,
        "<http:" * 15_000,
        "a@" * 50_000,
        "a." * 50_000 + "@",
        "https://" * 12_000,
    ),
    *(
        "> " * 50_000,
        "- " * 50_000,
        "1. " * 30_000,
        ">" * 500 + ("\n" + ">" * 500) * 200,
        "- a\n" * 25_000,
        "# " * 50_000,
    ),
    *(
        "\n".join("  " * n + "- a" for n in range(400)),
        "\n".join("> " * (n % 300) + "a" for n in range(400)),
        "> a\n" * 25_000,
    ),
    *(
        "\\\n" * 50_000,
        "[a]: b\n" * 14_000,
        "[a]: b\n=\n" * 10_000,
        "a\n=\n" * 20_000,
        "[a]: (\n" * 12_000,
        "|a" * 50_000 + "\n" + "|-" * 50_000,
    ),
    *(
        "|a|\n|-|\n" + "|\n" * 40_000,
        "a" + " " * 100_000 + "b",
        "a  \n" * 25_000,
        "# a" + " #" * 50_000,
        " " * 100_000 + "a",
    ),
    *(
        "&" + "a" * 100_000,
        "&#" * 50_000,
        "```\n" * 25_000,
        "~~~ a\n" * 15_000,
        "- - - x\n" * 12_000,
        "*\t" * 50_000,
        "a\n    b\n" * 12_000,
    ),
]


@pytest.mark.parametrize("cases", [CONSTRUCTS, LINKS, TABLES], ids=["constructs", "links", "tables"])
def test_markdown_becomes_elements(page: Page, cases: list[tuple[str, str]]) -> None:
    texts = [text for text, _ in cases]
    shown = page.evaluate(SHOW, [texts, ["class", "href", "start", "type"]])
    assert list(zip(texts, shown, strict=True)) == cases


def test_tasks_are_checked_as_they_say(page: Page) -> None:
    checked = page.evaluate(
        """async (text) => {
          const { MarkdownView } = await import('/ui/js/markdown/view.js');
          const root = document.createElement('div');
          new MarkdownView(root).update(text);
          return [...root.querySelectorAll('input')].map((input) => [input.checked, input.disabled]);
        }""",
        "- [x] a\n- [ ] b\n- [X] c",
    )
    assert checked == [[True, True], [False, True], [True, True]]


def test_hostile_texts_take_linear_time_and_bounded_depth(page: Page) -> None:
    # Twice: as a whole, and while it is still being written. Each takes well under a second on an idle machine.
    slow = page.evaluate(
        """async (texts) => {
          const { MarkdownView } = await import('/ui/js/markdown/view.js');
          const depthOf = (root) => {
            const walker = document.createTreeWalker(root, NodeFilter.SHOW_ELEMENT);
            let [depth, deepest] = [0, 0];
            for (let node = root; ; ) {
              if (walker.firstChild()) depth += 1;
              else {
                while (!walker.nextSibling()) { depth -= 1; if (!walker.parentNode()) return deepest; }
              }
              deepest = Math.max(deepest, depth);
              if (depth < 0) return deepest;
            }
          };
          const slow = [];
          for (const text of texts) for (const isOpen of [false, true]) {
            const root = document.createElement('div');
            const start = performance.now();
            new MarkdownView(root).update(text, isOpen);
            const took = performance.now() - start;
            const depth = depthOf(root);
            if (took > 10_000 || depth > 100) slow.push([text.slice(0, 40), text.length, isOpen, took, depth]);
          }
          return slow;
        }""",
        HOSTILE,
    )
    assert slow == []
