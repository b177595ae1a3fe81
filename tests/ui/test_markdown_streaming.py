"""Markdown that is still being written: what was shown once does not move, and the end is the same as shown at once."""

from typing import Any

from playwright.sync_api import Page

DOCUMENT = """# Plan for *today*

Some **bold text**, `code with *stars*` and a [link](https://example.org/a_(b)?c=d) in one line;
the next line has ~~gone~~, ***both*** and https://example.org/x_y. Ask <mail@example.org> &amp; wait.

Steps:
- [x] one with **bold
  text** in two lines
- [ ] two
  1. three
  2. four `x`

     more of four

- five, after a blank line

> A quote with *emphasis*
> in two lines
>
> - and a list

```python
def f(x):
    return x ** 2  # | not a table |

print(f(3))
```

A table:
| Name | Value |
| :--- | ----: |
| a | **1** |
| b | `2` |
| c | 3 |

    indented code

***

![a picture](https://example.org/picture.png) and **the [last](https://example.org) words**
"""

# Ends in the middle of something: what is shown there, as elements.
UNFINISHED = [
    ("a **bo", "<p>a <strong>bo</strong></p>"),
    ("a **bo*", "<p>a <strong>bo</strong></p>"),
    ("a **", "<p>a </p>"),
    ("a ***b* c", "<p>a <strong><em>b</em> c</strong></p>"),
    ("2*x", "<p>2*x</p>"),
    ("2 * 3", "<p>2 * 3</p>"),
    ("`co", "<p><code>co</code></p>"),
    ("~~go", "<p><del>go</del></p>"),
    ("see [li", "<p>see </p>"),
    ("see [link](https://exa", "<p>see <a>link</a></p>"),
    ("**[link](https://exa", "<p><strong><a>link</a></strong></p>"),
    ("see ![pic](https://exa", "<p>see <a>Image: pic</a></p>"),
    ("a [b] c", "<p>a [b] c</p>"),
    ("a &am", "<p>a </p>"),
    ("a \\", "<p>a </p>"),
    ("a <https://exa", "<p>a </p>"),
    ("text\n-", "<p>text</p>"),
    ("text\n- ", "<p>text</p>"),
    ("text\n- i", "<p>text</p><ul><li><p>i</p></li></ul>"),
    ("- a\n1", "<ul><li><p>a</p></li></ul>"),
    ("- [", "<ul><li></li></ul>"),
    ("- [x] d", "<ul><li class='task'><p><input>d</p></li></ul>"),
    ("#", ""),
    ("## T", "<h4>T</h4>"),
    ("text\n``", "<p>text</p>"),
    ("[label]: https://exa", ""),
    ("| a", "<table><thead><tr><th>a</th></tr></thead><tbody></tbody></table>"),
    (
        "| a | b |\n| -",
        "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody></tbody></table>",
    ),
    (
        "| a | b |\n| - | -: |\n| **1",
        "<table><thead><tr><th>a</th><th class='align-right'>b</th></tr></thead>"
        "<tbody><tr><td><strong>1</strong></td></tr></tbody></table>",
    ),
]

# The parts of random texts.
PARTS = [
    *(
        "a",
        "b c",
        " ",
        "  ",
        "\n",
        "\n\n",
        "\r\n",
        "\r",
        "\t",
        "    ",
        "*",
        "**",
        "_",
        "`",
        "```",
        "~~",
        "~~~",
        "\\",
        "&amp;",
    ),
    *(
        "[",
        "]",
        "](",
        "(",
        ")",
        "!",
        "[a]",
        "[a]: x\n",
        "[ ] ",
        "<",
        ">",
        "> ",
        "- ",
        "1. ",
        "7) ",
        "#",
        "# ",
        "---",
        "===",
    ),
    *(
        "|",
        "| - |",
        "\n| a | b |\n| - | - |\n",
        "<div>",
        "<!--",
        "-->",
        "https://e.org",
        "me@e.org",
        "水",
        "🚰",
        "\0",
    ),
]

# Shows `text` a few characters at a time and tells what moved: elements that were replaced, text that was taken back.
STREAM = """async ([text, step]) => {
  const { MarkdownView } = await import('/ui/js/markdown/view.js');
  const root = document.createElement('div');
  root.className = 'markdown';
  document.querySelector('#thread').replaceChildren(root);
  const view = new MarkdownView(root);
  const wrong = [];
  const placeOf = (node) => ({ node, top: node.getBoundingClientRect().top - root.getBoundingClientRect().top,
    text: node.textContent });
  let before = { places: [], shown: [] };
  for (let end = step; end < text.length + step; end += step) {
    const part = text.slice(0, end);
    view.update(part, true);
    const leaves = [...root.querySelectorAll('p, h3, h4, pre, hr, li, tr, blockquote, ul, ol, table')];
    // All but the last one and what it is in.
    const last = leaves.filter((leaf) => !leaf.querySelector('p, tr')).at(-1);
    const settled = leaves.filter((leaf) => !leaf.contains(last));
    for (const { node, top, text: said } of before.places) {
      const now = node.isConnected && placeOf(node);
      if (!now || Math.abs(now.top - top) > 0.5 || now.text !== said) wrong.push([part.slice(-30), node.tagName, said]);
    }
    before.shown.push([part, root.textContent]);
    before.places = settled.map(placeOf);
  }
  view.update(text);
  for (const [part, shown] of before.shown) {
    if (!root.textContent.startsWith(shown)) wrong.push([part.slice(-30), 'took back', shown.slice(-30)]);
  }
  const whole = document.createElement('div');
  whole.className = 'markdown';
  new MarkdownView(whole).update(text);
  const tags = [...root.querySelectorAll('*')].map((element) => element.localName);
  return { wrong, isSame: root.isEqualNode(whole), tags };
}"""


def stream(page: Page, text: str, step: int) -> dict[str, Any]:
    found: dict[str, Any] = page.evaluate(STREAM, [text, step])
    return found


def test_what_was_shown_stays_where_it_is(page: Page) -> None:
    for step in (1, 2, 3, 7, 50):
        found = stream(page, DOCUMENT, step)
        assert found["wrong"] == [], step
        assert found["isSame"]
    tags = "h3 em p strong code a del ul li input ol blockquote pre table th td hr"
    assert set(tags.split()) <= set(found["tags"])


def test_what_is_unfinished_is_shown_as_what_it_is_about_to_be(page: Page) -> None:
    shown = page.evaluate(
        """async (texts) => {
          const { MarkdownView } = await import('/ui/js/markdown/view.js');
          const write = (node) => {
            if (node.nodeType === Node.TEXT_NODE) return node.data;
            const inside = [...node.childNodes].map(write).join('');
            const name = node.className && ` class='${node.className}'`;
            return node.localName === 'input' ? '<input>' : `<${node.localName}${name}>${inside}</${node.localName}>`;
          };
          return texts.map((text) => {
            const root = document.createElement('div');
            new MarkdownView(root).update(text, true);
            for (const table of root.querySelectorAll('.table-scroll')) table.replaceWith(...table.childNodes);
            return [...root.childNodes].map(write).join('');
          });
        }""",
        [text for text, _ in UNFINISHED],
    )
    assert list(zip((text for text, _ in UNFINISHED), shown, strict=True)) == UNFINISHED


def test_any_text_ends_as_if_shown_at_once(page: Page) -> None:
    wrong = page.evaluate(
        """async (parts) => {
          const { MarkdownView } = await import('/ui/js/markdown/view.js');
          let state = 15;
          const random = (n) => (state = (state * 48271) % 2147483647) % n;
          const wrong = [];
          for (let round = 0; round < 1000; round += 1) {
            const text = Array.from({ length: 5 + random(30) }, () => parts[random(parts.length)]).join('');
            const [grown, whole] = [document.createElement('div'), document.createElement('div')];
            const view = new MarkdownView(grown);
            for (let end = 0; end < text.length; end += 1 + random(3)) view.update(text.slice(0, end), true);
            view.update(text);
            new MarkdownView(whole).update(text);
            if (!grown.isEqualNode(whole)) wrong.push([text, grown.outerHTML, whole.outerHTML]);
          }
          return wrong;
        }""",
        PARTS,
    )
    assert wrong == []


def test_a_definition_that_comes_later_changes_its_links_only(page: Page) -> None:
    text = "See [one] and [two].\n\nPlain.\n\n"
    before, after, is_kept = page.evaluate(
        """async ([text, definitions]) => {
          const { MarkdownView } = await import('/ui/js/markdown/view.js');
          const root = document.createElement('div');
          const view = new MarkdownView(root);
          const links = () => [...root.querySelectorAll('a')].map((a) => [a.textContent, a.href]);
          view.update(text);
          const [before, nodes] = [links(), [...root.children]];
          const plain = nodes[1].firstChild;
          view.update(text + definitions);
          const isKept = nodes.every((node, i) => node === root.children[i]) && plain === nodes[1].firstChild;
          return [before, links(), isKept];
        }""",
        [text, "[one]: https://e.org/1\n[Two]: https://e.org/2\n"],
    )
    assert before == []
    assert after == [["one", "https://e.org/1"], ["two", "https://e.org/2"]]
    assert is_kept


def test_another_text_replaces_all(page: Page) -> None:
    shown = page.evaluate(
        """async (texts) => {
          const { MarkdownView } = await import('/ui/js/markdown/view.js');
          const root = document.createElement('div');
          const view = new MarkdownView(root);
          return texts.map((text) => {
            view.update(text);
            return `${root.textContent} ${root.querySelectorAll('a').length}`;
          });
        }""",
        ["# A\n\nb\n\nc [d]\n\n[d]: https://e.org", "# X\n\nc [d]", "", "b"],
    )
    assert shown == ["Abc d 1", "Xc [d] 0", " 0", "b 0"]


def test_code_that_grows_keeps_its_text_node(page: Page) -> None:
    is_kept, language, text = page.evaluate(
        """async (texts) => {
          const { MarkdownView } = await import('/ui/js/markdown/view.js');
          const root = document.createElement('div');
          const view = new MarkdownView(root);
          view.update(texts[0], true);
          const node = root.querySelector('code').firstChild;
          for (const text of texts) view.update(text, true);
          const code = root.querySelector('code');
          return [node === code.firstChild, root.querySelector('.code-head span').textContent, code.textContent];
        }""",
        ["```py\na", "```py\na = 1", "```py\na = 1\nb", "```py\na = 1\nb\n``"],
    )
    assert is_kept, "what the user has selected must stay selected"
    assert (language, text) == ("py", "a = 1\nb")


def test_a_frame_of_a_long_answer_reads_and_touches_only_its_end(page: Page) -> None:
    num_patterns, touched, is_last = page.evaluate(
        """async (part) => {
          const { MarkdownView } = await import('/ui/js/markdown/view.js');
          const root = document.createElement('div');
          const view = new MarkdownView(root);
          const text = part.repeat(600);
          view.update(text, true);
          const observer = new MutationObserver(() => {});
          observer.observe(root, { childList: true, characterData: true, attributes: true, subtree: true });
          // How much is read is told by how many patterns are tried.
          const { exec } = RegExp.prototype;
          let count = 0;
          RegExp.prototype.exec = function counted(...given) {
            count += 1;
            return exec.apply(this, given);
          };
          view.update(`${text}word`, true);
          RegExp.prototype.exec = exec;
          const targets = observer.takeRecords().map(({ target }) => target);
          const isLast = targets.every((target) => target === root || root.lastChild.contains(target));
          return [count, targets.length, isLast];
        }""",
        "## Part\n\nSome *words* and `code` here.\n\n- a\n- b\n\n",
    )
    assert 0 < num_patterns < 200
    assert 0 < touched < 5
    assert is_last
