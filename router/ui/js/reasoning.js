// Tells reasoning from answer where a model writes it into its text as <think>…</think>. Servers that parse it
// themselves send it apart, and then nothing here applies.

const OPEN = '<think>';
const CLOSE = '</think>';

// Pure: the whole text so far in, both parts out. A tag that is still arriving is held back from both.
export function splitReasoning(text) {
  const start = text.trimStart();
  if (OPEN.startsWith(start.slice(0, OPEN.length)) && start.length < OPEN.length) {
    return { reasoning: '', content: '', open: start.length > 0 };
  }
  if (!start.startsWith(OPEN)) return { reasoning: '', content: text, open: false };
  const inner = start.slice(OPEN.length);
  const end = inner.indexOf(CLOSE);
  if (end < 0) return { reasoning: withoutPartial(inner, CLOSE).trim(), content: '', open: true };
  return { reasoning: inner.slice(0, end).trim(), content: inner.slice(end + CLOSE.length).trimStart(), open: false };
}

function withoutPartial(text, tag) {
  for (let length = Math.min(tag.length - 1, text.length); length > 0; length--) {
    if (tag.startsWith(text.slice(-length))) return text.slice(0, -length);
  }
  return text;
}
