// What is inside of a paragraph, a heading or a cell: text in, a tree out, in linear time. Its nodes:
//
//   text {text}   html {text}   code {text}   break   strong, em, del {children}
//   link, image {href, title, children, source}
//
// `find` looks up the definition of a label. A text that is still being written (`isOpen`) is read as if it ended well:
// what is open at its end is closed, and marks at its end wait for what follows.

import { WEB_ADDRESS_AHEAD, webAddressAt } from './addresses.js';
import { referenceAt } from './characters.js';
import { matchRuns, openRest, runAt } from './emphasis.js';
import { HtmlFinder } from './html.js';
import { labelAt, normalLabel, targetAt } from './links.js';
import { autolink, treeOf } from './tree.js';

const TEXT = new RegExp(`(?:(?!${WEB_ADDRESS_AHEAD})[^\\\\\`*_~[\\]!<&\\n])+`, 'iy');
const ESCAPED = /[!-/:-@[-`{-~]/;
const IN_ANGLES = /<(?:([a-z][a-z0-9.+-]{1,31}:[^\s<>]*)|([\w.!#$%&'*+/=?^`{|}~-]+@[a-z0-9-]+(?:\.[a-z0-9-]+)*))>/iy;
// The end of a text that may become an image, a link, an address, an escape or a reference.
const HELD_END = /(?:(?<!\S)!|!?\[[^[\]\n]*\]?|<[^\s<>]*|\\|&#?\w*)$/;
const MAX_HELD = 64;
// A target without its end, which nobody wants to read.
const OPEN_TARGET = /\((?:[^()\n]|\([^()\n]{0,500}(?:\)|$)){0,2000}$/y;

export function parseInline(text, find, isOpen = false) {
  return new InlineParser(isOpen ? withoutLastMarks(text) : text, find, isOpen).parse();
}

// Marks at the end may open, close or be text; a bracket may start a link. What they are shows when more has come.
function withoutLastMarks(text) {
  const shown = withoutLastRun(text);
  const start = Math.max(0, shown.length - MAX_HELD);
  return withoutLastRun(shown.slice(0, start) + shown.slice(start).replace(HELD_END, ''));
}

function withoutLastRun(text) {
  let end = text.length;
  while (end > 0 && '*_~`'.includes(text[end - 1])) end -= 1;
  return text.slice(0, end);
}

class InlineParser {
  #text;
  #find;
  #isOpen;
  #position = 0;
  #tokens = [];
  #runs = [];
  #brackets = [];
  // Brackets below this index cannot become links: a link follows them, and links hold no links.
  #spent = 0;
  #ticks;
  #html;

  constructor(text, find, isOpen) {
    this.#text = text;
    this.#find = find;
    this.#isOpen = isOpen;
    this.#html = new HtmlFinder(text);
  }

  parse() {
    while (this.#position < this.#text.length) this.#step();
    const unmatched = matchRuns(this.#runs);
    if (this.#isOpen) this.#tokens.push({ type: 'close', count: unmatched.reduce((sum, run) => sum + openRest(run), 0) });
    return treeOf(this.#tokens);
  }

  #step() {
    const read = {
      '\\': this.#escape, '`': this.#code, '*': this.#run, '_': this.#run, '~': this.#run, '[': this.#openBracket,
      '!': this.#openImage, ']': this.#closeBracket, '<': this.#address, '&': this.#reference, '\n': this.#newline,
    }[this.#text[this.#position]];
    (read ?? this.#plain).call(this);
  }

  // Adds a token that ends `length` characters further on.
  #take(length, token) {
    this.#position += length;
    this.#tokens.push(token);
  }

  #takeText(length) {
    this.#take(length, { type: 'text', text: this.#text.slice(this.#position, this.#position + length) });
  }

  #plain() {
    TEXT.lastIndex = this.#position;
    const found = TEXT.exec(this.#text)?.[0];
    if (found) return this.#takeText(found.length);
    const address = webAddressAt(this.#text, this.#position);
    if (!address) return this.#takeText(1);
    this.#take(address.text.length, autolink(address.href, address.text));
  }

  #escape() {
    const next = this.#text[this.#position + 1];
    if (next === '\n') this.#take(2, { type: 'break' });
    else if (next && ESCAPED.test(next)) this.#take(2, { type: 'text', text: next });
    else this.#takeText(1);
  }

  #code() {
    const length = lengthOfRun(this.#text, this.#position);
    const start = this.#position + length;
    let end = this.#closingTicks(length, start);
    // A single tick before white space is rather a tick than code that starts.
    if (end === undefined && this.#isOpen && (length > 1 || /\S/.test(this.#text[start] ?? ' '))) end = this.#text.length;
    if (end === undefined) this.#takeText(length);
    else {
      const code = { type: 'code', text: codeText(this.#text.slice(start, end)) };
      this.#take(Math.min(end + length, this.#text.length) - this.#position, code);
    }
  }

  // Where the next run of exactly `length` ticks starts. Positions only grow, so passed ones are dropped.
  #closingTicks(length, from) {
    this.#ticks ??= tickRuns(this.#text);
    const positions = this.#ticks.get(length) ?? [];
    while (positions.at(-1) < from) positions.pop();
    return positions.at(-1);
  }

  #run() {
    const length = lengthOfRun(this.#text, this.#position);
    const run = runAt(this.#text, this.#position, length);
    this.#runs.push(run);
    this.#take(length, run);
  }

  #openBracket() {
    this.#open(1, false);
  }

  #openImage() {
    if (this.#text[this.#position + 1] === '[') this.#open(2, true);
    else this.#takeText(1);
  }

  #open(length, isImage) {
    const above = this.#brackets.at(-1);
    if (above) above.holdsBracket = true;
    const position = this.#position;
    this.#takeText(length);
    this.#brackets.push({ isImage, position, start: position + length, token: this.#tokens.at(-1), runs: this.#runs.length });
  }

  #closeBracket() {
    const bracket = this.#brackets.pop();
    const isSpent = bracket && !bracket.isImage && this.#brackets.length < this.#spent;
    this.#spent = Math.min(this.#spent, this.#brackets.length);
    const target = bracket && !isSpent && this.#target(bracket);
    if (!target) return this.#takeText(1);
    const source = this.#text.slice(bracket.position, target.end);
    matchRuns(this.#runs.splice(bracket.runs));
    const element = { type: bracket.isImage ? 'image' : 'link', href: target.href, title: target.title, source };
    Object.assign(bracket.token, { type: 'open', element });
    this.#take(target.end - this.#position, { type: 'close', count: 1 });
    if (!bracket.isImage) this.#spent = this.#brackets.length;
  }

  // What the brackets before the position point to: (address), [label], or their own text as a label.
  #target(bracket) {
    const after = this.#position + 1;
    const inline = targetAt(this.#text, after);
    if (inline) return inline;
    const written = labelAt(this.#text, after);
    const own = bracket.holdsBracket ? null : this.#text.slice(bracket.start, this.#position);
    const label = written?.text ? written.text : own;
    const definition = label && this.#definition(label);
    if (definition) return { ...definition, end: written ? written.end : after };
    return this.#isOpen ? this.#openTarget(after) : null;
  }

  #definition(text) {
    const label = normalLabel(text);
    return label && this.#find(label);
  }

  #openTarget(position) {
    OPEN_TARGET.lastIndex = position;
    return OPEN_TARGET.test(this.#text) ? { href: null, title: '', end: this.#text.length } : null;
  }

  #address() {
    IN_ANGLES.lastIndex = this.#position;
    const found = IN_ANGLES.exec(this.#text);
    if (!found) return this.#rawHtml();
    const [all, address, mail] = found;
    this.#take(all.length, autolink(address ?? `mailto:${mail}`, address ?? mail, all));
  }

  #rawHtml() {
    const end = this.#html.endAt(this.#position);
    if (end === null) this.#takeText(1);
    else this.#take(end - this.#position, { type: 'html', text: this.#text.slice(this.#position, end) });
  }

  #reference() {
    const found = referenceAt(this.#text, this.#position);
    if (found) this.#take(found.end - this.#position, { type: 'text', text: found.character });
    else this.#takeText(1);
  }

  // Two spaces at the end of a line make a break. The next line's indentation says nothing.
  #newline() {
    const last = this.#tokens.at(-1);
    const text = last?.type === 'text' ? last.text : '';
    const kept = text.replace(/(?<! ) +$/, '');
    if (kept.length < text.length) last.text = kept;
    this.#take(1, text.length - kept.length >= 2 ? { type: 'break' } : { type: 'text', text: '\n' });
    while (this.#text[this.#position] === ' ' || this.#text[this.#position] === '\t') this.#position += 1;
  }
}

function lengthOfRun(text, start) {
  let end = start;
  while (text[end] === text[start]) end += 1;
  return end - start;
}

// Where the runs of each length start, the last first.
function tickRuns(text) {
  const byLength = new Map();
  for (const { 0: { length }, index } of [...text.matchAll(/`+/g)].reverse()) {
    if (!byLength.has(length)) byLength.set(length, []);
    byLength.get(length).push(index);
  }
  return byLength;
}

// One space on both sides only keeps ticks apart.
function codeText(text) {
  const line = text.replaceAll('\n', ' ');
  return line.startsWith(' ') && line.endsWith(' ') && /[^ ]/.test(line) ? line.slice(1, -1) : line;
}
