// The parts of links: labels, addresses, titles, and the definitions that reference links name. Every function reads at
// a position and looks no further than it must, so that hostile text costs linear time.

import { unescape } from './characters.js';

const MAX_LABEL = 999;
const MAX_PARENTHESES = 32;

const LABEL = /\[((?:[^\\[\]]|\\[^]){0,999})\]/y;
const IN_ANGLES = /<((?:[^<>\\\n]|\\[^\n])*)>/y;
const TITLE = /"((?:[^"\\]|\\[^])*)"|'((?:[^'\\]|\\[^])*)'|\(((?:[^()\\]|\\[^])*)\)/y;
const SPACE = /[ \t]*\n?[ \t]*/y;
const END_OF_LINE = /[ \t]*(?:\n|$)/y;

function matchAt(pattern, text, position) {
  pattern.lastIndex = position;
  return pattern.exec(text);
}

const afterSpace = (text, position) => position + matchAt(SPACE, text, position)[0].length;

// What the labels of a text stand for; the first definition of a label holds.
export class Definitions {
  #byLabel = new Map();

  find(label) {
    return this.#byLabel.get(label);
  }

  // `position` is where in the text it was found.
  add(label, definition, position) {
    if (!this.#byLabel.has(label)) this.#byLabel.set(label, { ...definition, position });
  }

  // Forgets those of the part of the text that is going to be read again.
  dropFrom(position) {
    for (const [label, definition] of this.#byLabel) {
      if (definition.position >= position) this.#byLabel.delete(label);
    }
  }

  // Two equal strings mean equal definitions.
  toString() {
    return JSON.stringify([...this.#byLabel].map(([label, { href, title }]) => [label, href, title]));
  }
}

// Case and the kind of white space make no difference. Null if it is none.
export function normalLabel(text) {
  if (text.length > MAX_LABEL || !/[^ \t\n]/.test(text)) return null;
  return text.trim().replace(/[ \t\n]+/g, ' ').toLowerCase().toUpperCase();
}

// `[label]`: the text between the brackets and where it ends.
export function labelAt(text, position) {
  const found = matchAt(LABEL, text, position);
  return found && { text: found[1], end: position + found[0].length };
}

// `(address "title")`, the part of an inline link that follows its text.
export function targetAt(text, position) {
  if (text[position] !== '(') return null;
  const address = addressAt(text, afterSpace(text, position + 1));
  if (!address) return null;
  const title = titleAfter(text, address.end);
  const end = afterSpace(text, title.end);
  return text[end] === ')' ? { href: address.href, title: title.text, end: end + 1 } : null;
}

function addressAt(text, position) {
  if (text[position] === '<') {
    const found = matchAt(IN_ANGLES, text, position);
    return found && { href: unescape(found[1]), end: position + found[0].length };
  }
  const end = endOfBareAddress(text, position);
  return end === null ? null : { href: unescape(text.slice(position, end)), end };
}

// Up to white space or a parenthesis that the address did not open.
function endOfBareAddress(text, start) {
  let [end, opened] = [start, 0];
  for (; end < text.length && text[end] > ' ' && text[end] !== '\x7f'; end += 1) {
    if (text[end] === '\\' && text[end + 1] > ' ') end += 1;
    else if (text[end] === '(') opened += 1;
    else if (text[end] === ')') opened -= 1;
    if (opened > MAX_PARENTHESES) return null;
    if (opened < 0) return end;
  }
  return opened === 0 ? end : null;
}

// A title has white space before it. Without one, the end is where the white space starts.
function titleAfter(text, position) {
  const start = afterSpace(text, position);
  const found = start > position && matchAt(TITLE, text, start);
  if (!found) return { text: '', end: position };
  return { text: unescape(found[1] ?? found[2] ?? found[3]), end: start + found[0].length };
}

// Takes definitions off the start of a paragraph and returns what is left of it.
export function takeDefinitions(paragraph, definitions, position) {
  let start = 0;
  for (let found; (found = definitionAt(paragraph, start)); start = found.end) {
    definitions.add(found.label, { href: found.href, title: found.title }, position);
  }
  return paragraph.slice(start);
}

function definitionAt(text, position) {
  const written = labelAt(text, position);
  const label = written && normalLabel(written.text);
  if (!label || text[written.end] !== ':') return null;
  const start = afterSpace(text, written.end + 1);
  const address = start < text.length ? addressAt(text, start) : null;
  if (!address) return null;
  const title = titleAfter(text, address.end);
  // What looked like a title but is followed by more is none, if a line of its own holds the address.
  const line = matchAt(END_OF_LINE, text, title.end);
  if (line) return { label, href: address.href, title: title.text, end: title.end + line[0].length };
  const shorter = matchAt(END_OF_LINE, text, address.end);
  return shorter && { label, href: address.href, title: '', end: address.end + shorter[0].length };
}
