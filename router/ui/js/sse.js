// Server-sent events over fetch: turns the bytes of a response into the data of its events. Only `data:` matters
// here; comments (keep-alive), `event:`, `id:` and `retry:` are skipped.

export async function* readEvents(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  const parser = new EventParser();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parser.push(value);
    }
  } finally {
    // Leaving the loop early closes the connection, which makes the server stop generating.
    reader.cancel().catch(() => {});
  }
}

// Pure: text in at any split, complete events out. Lines end in LF, CR or CRLF.
export class EventParser {
  #rest = '';
  #data = [];

  push(text) {
    const events = [];
    this.#rest += text;
    // A CR at the very end may be the first half of a CRLF: wait for what follows.
    for (let end; (end = this.#rest.search(/\r\n|\n|\r(?!$)/)) >= 0; ) {
      const line = this.#rest.slice(0, end);
      this.#rest = this.#rest.slice(end + (this.#rest.startsWith('\r\n', end) ? 2 : 1));
      this.#line(line, events);
    }
    return events;
  }

  #line(line, events) {
    if (line === '') {
      if (this.#data.length) events.push(this.#data.join('\n'));
      this.#data = [];
    } else if (line.startsWith('data:')) {
      this.#data.push(line.slice(line[5] === ' ' ? 6 : 5));
    }
  }
}
