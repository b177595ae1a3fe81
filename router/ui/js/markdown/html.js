// Where raw HTML starts and ends. It is never made into elements: it is found so that it can be shown as it was written,
// and nothing in it is taken for Markdown.

const ATTRIBUTE = '\\s+[a-z_:][\\w.:-]*(?:\\s*=\\s*(?:[^\\s"\'=<>`]+|\'[^\']*\'|"[^"]*"))?';
const TAG = `<[a-z][a-z0-9-]*(?:${ATTRIBUTE})*\\s*/?>|</[a-z][a-z0-9-]*\\s*>`;
const TAG_HERE = new RegExp(TAG, 'iy');
const TAG_ALONE = new RegExp(`^(?:${TAG})[ \\t]*$`, 'i');

// Lines that start a block, and what ends it. A block without an end goes on to the next blank line.
const AS_IT_IS = 'script|pre|style|textarea';
const BLOCK_NAMES = `address|article|aside|base|basefont|blockquote|body|caption|center|col|colgroup|dd|details|dialog|dir|div|dl|dt|\
fieldset|figcaption|figure|footer|form|frame|frameset|h[1-6]|head|header|hr|html|iframe|legend|li|link|main|menu|menuitem|nav|\
noframes|ol|optgroup|option|p|param|search|section|summary|table|tbody|td|tfoot|th|thead|title|tr|track|ul`;
const BLOCKS = [
  { start: new RegExp(`^<(?:${AS_IT_IS})(?=[\\s>]|$)`, 'i'), end: new RegExp(`</(?:${AS_IT_IS})>`, 'i') },
  { start: /^<!--/, end: /-->/ },
  { start: /^<\?/, end: /\?>/ },
  { start: /^<![a-z]/i, end: />/ },
  { start: /^<!\[CDATA\[/, end: /\]\]>/ },
  { start: new RegExp(`^</?(?:${BLOCK_NAMES})(?=\\s|/?>|$)`, 'i') },
];

// How the block ends that starts with this line: {end}, or null if none starts. A tag that may stand in a text starts one
// only if it is alone on its line and no paragraph is open.
export function htmlBlockOf(line, isInParagraph) {
  if (line[0] !== '<') return null;
  const found = BLOCKS.find(({ start }) => start.test(line));
  return found ?? (!isInParagraph && TAG_ALONE.test(line) ? {} : null);
}

const ENDS = [['<!-->', ''], ['<!--->', ''], ['<!--', '-->'], ['<?', '?>'], ['<![CDATA[', ']]>'], ['<!', '>']];

// Finds the ends of HTML in one text. What is not found once is not looked for again: hostile text costs linear time.
export class HtmlFinder {
  #text;
  #missing = new Set();

  constructor(text) {
    this.#text = text;
  }

  // Where the HTML ends that starts at `position`, or null if none does.
  endAt(position) {
    TAG_HERE.lastIndex = position;
    if (TAG_HERE.test(this.#text)) return TAG_HERE.lastIndex;
    const form = ENDS.find(([start]) => this.#text.startsWith(start, position));
    if (!form || (form[0] === '<!' && !/[a-z]/i.test(this.#text[position + 2] ?? ''))) return null;
    return this.#endOf(form, position);
  }

  #endOf([start, end], position) {
    if (this.#missing.has(end)) return null;
    const found = this.#text.indexOf(end, position + start.length);
    if (found < 0) this.#missing.add(end);
    return found < 0 ? null : found + end.length;
  }
}
