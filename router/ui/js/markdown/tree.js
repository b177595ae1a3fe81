// From the tokens of a text, in their order, to the tree of inline.js. Texts that touch are joined, and mail addresses in
// them become links.

import { mailAddressesApart } from './addresses.js';

// What is nested deeper loses its formatting, not its text.
const MAX_DEPTH = 20;

// `source` is how the address was written, `text` how it is shown.
export const autolink = (href, text, source = text) =>
  ({ type: 'link', href, title: '', source, children: [{ type: 'text', text }] });

// Opening and closing tokens are nested well: matching them made sure of it.
export function treeOf(tokens) {
  const tree = new Tree();
  for (const token of tokens) tree.add(token);
  return tree.finish();
}

class Tree {
  #stack = [{ children: [] }];
  // How many of them are links, in which nothing else is one.
  #links = 0;

  add(token) {
    if (token.type === 'text') this.#text(token.text);
    else if (token.type === 'open') this.#open(token.element);
    else if (token.type === 'close') this.#close(token.count);
    else if (token.type === 'run') this.#run(token);
    else if (token.type === 'link' && this.#links > 0) this.#text(token.source);
    else this.#stack.at(-1).children.push(token);
  }

  finish() {
    const root = this.#stack[0];
    this.#close(1);
    return root.children;
  }

  #run({ character, left, closes, opens }) {
    this.#close(closes.length);
    this.#text(character.repeat(left));
    for (const type of opens.toReversed()) this.#open({ type });
  }

  #text(text) {
    const { children } = this.#stack.at(-1);
    if (children.at(-1)?.type === 'text') children.at(-1).text += text;
    else if (text) children.push({ type: 'text', text });
  }

  #open(element) {
    const parent = this.#stack.at(-1);
    if (this.#stack.length > MAX_DEPTH) return this.#stack.push(parent);
    if (element.type === 'link') this.#links += 1;
    element.children = [];
    parent.children.push(element);
    return this.#stack.push(element);
  }

  #close(count) {
    for (let i = 0; i < count; i += 1) this.#finishElement(this.#stack.pop());
  }

  #finishElement(element) {
    if (element === this.#stack.at(-1)) return;
    if (this.#links === 0) element.children = element.children.flatMap(withMailLinks);
    if (element.type === 'link') this.#links -= 1;
  }
}

function withMailLinks(node) {
  if (node.type !== 'text') return [node];
  return mailAddressesApart(node.text).map(({ text, isMail }) => (isMail ? autolink(`mailto:${text}`, text) : { type: 'text', text }));
}
