"""The modules without a view, run in the browser: the event parser, reasoning."""

from playwright.sync_api import Page


def test_events_survive_any_split(page: Page) -> None:
    wrong = page.evaluate(
        """async () => {
          const { EventParser } = await import('/ui/js/sse.js');
          const stream = ': hello\\n\\ndata: {"a":1}\\n\\ndata:two\\r\\n\\r\\n'
            + 'event: x\\ndata: b\\ndata:  c\\n\\n:\\n\\ndata: [DONE]\\n\\n';
          const expected = JSON.stringify(['{"a":1}', 'two', 'b\\n c', '[DONE]']);
          const wrong = [];
          for (let i = 0; i <= stream.length; i++) for (let j = i; j <= stream.length; j++) {
            const parser = new EventParser();
            const parts = [stream.slice(0, i), stream.slice(i, j), stream.slice(j)];
            const events = parts.flatMap((part) => parser.push(part));
            if (JSON.stringify(events) !== expected) wrong.push([i, j, events]);
          }
          return wrong;
        }"""
    )
    assert wrong == []


def test_bytes_split_inside_a_character_are_joined(page: Page) -> None:
    events = page.evaluate(
        """async () => {
          const { readEvents } = await import('/ui/js/sse.js');
          const bytes = new TextEncoder().encode('data: naïve 水 🚰\\n\\n');
          const pieces = Array.from(bytes, (byte) => new Uint8Array([byte]));
          const stream = new ReadableStream({ start(control) {
            pieces.forEach((piece) => control.enqueue(piece));
            control.close();
          } });
          const events = [];
          for await (const event of readEvents(stream)) events.push(event);
          return events;
        }"""
    )
    assert events == ["naïve 水 🚰"]


def test_reasoning_never_leaks_into_the_answer_at_any_split(page: Page) -> None:
    wrong = page.evaluate(
        """async () => {
          const { splitReasoning } = await import('/ui/js/reasoning.js');
          const text = '<think>a < b </ c</think>\\n\\nanswer <think> stays';
          const wrong = [];
          for (let i = 1; i <= text.length; i++) {
            const { reasoning, content } = splitReasoning(text.slice(0, i));
            const fits = 'answer <think> stays'.startsWith(content) && 'a < b </ c'.startsWith(reasoning);
            if (!fits) wrong.push([i, reasoning, content]);
          }
          const whole = splitReasoning(text);
          const others = ['<thin', 'plain'].map((text) => splitReasoning(text).content);
          return [...wrong, whole.content === 'answer <think> stays' || whole, ...others];
        }"""
    )
    assert wrong == [True, "", "plain"]
