// Markdown to DOM. The vendored library only cuts the text into tokens; the elements are built here, one by one, with
// text as text. So there is no HTML to sanitise: what looks like HTML is shown as the characters it is, links go to
// http, https and mailto only, and images become links, because showing them would call a foreign server.

import { lexer } from '../vendor/marked.esm.js';
import { h } from './dom.js';
import { codeBlock } from './code.js';

// Beyond this a text is shown unformatted: cutting it on every frame would cost more than it gives.
const MAX_FORMATTED = 200_000;

// Shows a growing text in `root`, replacing only the blocks that changed.
export class MarkdownView {
  #root;
  #blocks = [];

  constructor(root) {
    this.#root = root;
  }

  update(text) {
    const tokens = cut(text);
    const kept = this.#unchanged(tokens);
    if (this.#growCode(tokens, kept)) return;
    for (const block of this.#blocks.splice(kept)) block.node.remove();
    for (const token of tokens.slice(kept)) {
      const node = renderSafely(token);
      this.#root.append(node);
      this.#blocks.push({ token, node });
    }
  }

  #unchanged(tokens) {
    const changed = this.#blocks.findIndex(({ token }, i) => tokens[i]?.raw !== token.raw || tokens[i].type !== token.type);
    return changed < 0 ? this.#blocks.length : changed;
  }

  // A code block that only got longer keeps its element, and with it the selection and the scroll position.
  #growCode(tokens, kept) {
    const [last, token] = [this.#blocks[kept], tokens[kept]];
    const grows = last?.token.type === 'code' && token?.type === 'code' && last.token.lang === token.lang;
    if (!grows || kept !== this.#blocks.length - 1 || kept !== tokens.length - 1) return false;
    last.node.update(token.text);
    last.token = token;
    return true;
  }
}

export function renderMarkdown(text) {
  const root = h('div', { class: 'markdown' });
  new MarkdownView(root).update(text);
  return root;
}

function cut(text) {
  if (text.length > MAX_FORMATTED) return [plain(text)];
  try {
    return lexer(text, { gfm: true, breaks: true }).filter(({ type }) => type !== 'space' && type !== 'def');
  } catch {
    return [plain(text)];
  }
}

const plain = (raw) => ({ type: 'plain', raw });

// Nesting deep enough to exhaust the stack is shown as it was written.
function renderSafely(token) {
  try {
    return BLOCKS[token.type]?.(token) ?? paragraphOfText(token.raw);
  } catch {
    return paragraphOfText(token.raw);
  }
}

const paragraphOfText = (text) => h('p', { class: 'plain' }, text);
const block = (token) => (BLOCKS[token.type] ?? inline)(token);

const BLOCKS = {
  heading: (token) => h(`h${Math.min(token.depth + 2, 6)}`, {}, inlines(token.tokens)),
  paragraph: (token) => h('p', {}, inlines(token.tokens)),
  hr: () => h('hr'),
  code: (token) => codeBlock(token.text, (token.lang ?? '').split(/\s/)[0]),
  blockquote: (token) => h('blockquote', {}, token.tokens.map(block)),
  list: (token) => list(token),
  table: (token) => table(token),
  html: (token) => paragraphOfText(token.raw.trimEnd()),
  plain: (token) => paragraphOfText(token.raw),
  space: () => '',
  def: () => '',
};

function list(token) {
  // "42." is an answer, though Markdown has it as the number of an empty item.
  if (token.items.every(({ text }) => !text.trim())) return paragraphOfText(token.raw.trim());
  const start = token.ordered && token.start !== 1 ? { start: token.start } : {};
  return h(token.ordered ? 'ol' : 'ul', start, token.items.map(listItem));
}

const listItem = (item) => h('li', item.task ? { class: 'task' } : {}, item.tokens.map(block));

function table(token) {
  const cell = (tag) => (content, column) =>
    h(tag, token.align[column] ? { class: `align-${token.align[column]}` } : {}, inlines(content.tokens));
  const head = h('thead', {}, h('tr', {}, token.header.map(cell('th'))));
  const body = h('tbody', {}, token.rows.map((row) => h('tr', {}, row.map(cell('td')))));
  return h('div', { class: 'table-scroll', tabindex: '0', role: 'region', 'aria-label': 'Table' }, h('table', {}, head, body));
}

const inlines = (tokens) => (tokens ?? []).map(inline);
const inline = (token) => INLINES[token.type]?.(token) ?? decode(token.text ?? token.raw);

const INLINES = {
  text: (token) => (token.tokens ? h('span', {}, inlines(token.tokens)) : decode(token.text)),
  escape: (token) => token.text,
  strong: (token) => h('strong', {}, inlines(token.tokens)),
  em: (token) => h('em', {}, inlines(token.tokens)),
  del: (token) => h('del', {}, inlines(token.tokens)),
  codespan: (token) => h('code', {}, token.text),
  br: () => h('br'),
  checkbox: (token) => h('input', { type: 'checkbox', disabled: true, checked: token.checked, 'aria-label': 'Task' }),
  link: (token) => link(token, inlines(token.tokens)),
  image: (token) => link(token, [`Image: ${decode(token.text) || token.href}`]),
  html: (token) => token.raw,
};

function link(token, children) {
  const href = safeAddress(decode(token.href));
  if (!href) return token.raw;
  return h('a', { href, target: '_blank', rel: 'noopener noreferrer nofollow', title: href }, children);
}

// Absolute http, https and mailto addresses only; anything else stays text.
export function safeAddress(text) {
  if (!/^(https?:\/\/|mailto:)/i.test(text)) return null;
  try {
    return new URL(text).href;
  } catch {
    return null;
  }
}

const NAMED = { amp: '&', lt: '<', gt: '>', quot: '"', apos: "'", nbsp: '\u00a0', copy: '©', hellip: '…', mdash: '—',
  ndash: '–', rarr: '→', larr: '←', times: '×', middot: '·', deg: '°', euro: '€', le: '≤', ge: '≥', ne: '≠' };

// The character references of Markdown text. The result is only ever used as text.
function decode(text) {
  return text.replace(/&(?:#(\d{1,7})|#x([0-9a-f]{1,6})|([a-z]+));/gi, (all, decimal, hex, name) => {
    if (name) return NAMED[name] ?? all;
    const code = decimal ? Number(decimal) : parseInt(hex, 16);
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : '\ufffd';
  });
}
