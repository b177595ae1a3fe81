// The blocks of blocks.js as elements that grow with them: a block that only got longer keeps its element, and what did
// not change is not touched.

import { codeBlock } from '../code.js';
import { h } from '../dom.js';
import { elementsOf } from './elements.js';
import { parseInline } from './inline.js';

// Beyond this a single paragraph is shown unformatted: reading it on every frame would cost more than it gives.
const MAX_FORMATTED = 100_000;

// The views of blocks that follow each other, in one parent.
export class BlockViews {
  #parent;
  #views = [];

  constructor(parent) {
    this.#parent = parent;
  }

  // `page` has the definitions of the text and tells whether they changed since the last call.
  update(blocks, page) {
    blocks.forEach((block, i) => {
      if (this.#views[i]?.block !== block || page.areDefinitionsNew) this.#show(block, i, page);
    });
    this.#cut(blocks.length);
  }

  #show(block, i, page) {
    const shown = asShown(block);
    const kind = kindOf(shown);
    if (this.#views[i]?.kind !== kind) {
      this.#cut(i);
      const view = VIEWS[shown.type](shown);
      this.#parent.append(view.node);
      this.#views.push({ kind, view });
    }
    this.#views[i].view.update(shown, page);
    this.#views[i].block = block;
  }

  #cut(length) {
    for (const { view } of this.#views.splice(length)) view.node.remove();
  }
}

const VIEWS = {
  paragraph: () => new TextView(h('p')),
  heading: ({ level }) => new TextView(h(`h${shownLevel(level)}`)),
  cell: ({ tag }) => new TextView(h(tag)),
  html: () => new PlainView(),
  rule: () => ({ node: h('hr'), update() {} }),
  code: () => new CodeView(),
  quote: () => new ContainerView(h('blockquote')),
  list: ({ isOrdered, start }) => new ContainerView(h(isOrdered ? 'ol' : 'ul', start === 1 ? {} : { start })),
  item: () => new ItemView(h('li')),
  row: () => new ContainerView(h('tr')),
  table: () => new TableView(),
};

// A block of the same kind can take over the element.
const kindOf = ({ type, level, isOrdered, start, tag }) => [type, level && shownLevel(level), isOrdered, start, tag].join();

// Titles of the page itself are above those of an answer.
const shownLevel = (level) => Math.min(level + 2, 6);

// "42." is an answer, though Markdown has it as the number of an empty item.
function asShown(block) {
  const isEmptyList = block.type === 'list' && !block.isOpen && block.children.every(({ children }) => children.length === 0);
  return isEmptyList ? { type: 'html', text: block.children.map(({ marker }) => marker).join('\n') } : block;
}

class TextView {
  #shown = {};
  #usesDefinitions = false;

  constructor(node) {
    this.node = node;
  }

  update({ text, isOpen = false, task, alignment }, page) {
    if (alignment) this.node.className = `align-${alignment}`;
    else this.node.removeAttribute('class');
    const shown = { text, isOpen, isDone: task?.isDone };
    const isNew = Object.keys(shown).some((name) => shown[name] !== this.#shown[name]);
    if (!isNew && !(page.areDefinitionsNew && this.#usesDefinitions)) return;
    this.#shown = shown;
    this.node.replaceChildren(...(task ? [checkbox(task)] : []), ...this.#content(text, isOpen, page));
  }

  #content(text, isOpen, page) {
    if (text.length > MAX_FORMATTED) return [text];
    this.#usesDefinitions = false;
    const find = (label) => {
      this.#usesDefinitions = true;
      return page.definitions.find(label);
    };
    return elementsOf(parseInline(text, find, isOpen));
  }
}

const checkbox = ({ isDone }) => h('input', { type: 'checkbox', disabled: true, checked: isDone, 'aria-label': 'Task' });

// What is shown as it was written.
class PlainView {
  node = h('p', { class: 'plain' });

  update({ text }) {
    if (this.node.textContent !== text) this.node.textContent = text;
  }
}

class CodeView {
  node = codeBlock('', '');

  update({ text, language }) {
    this.node.update(text, language.split(/\s/)[0]);
  }
}

class ContainerView {
  #children;

  constructor(node) {
    this.node = node;
    this.#children = new BlockViews(node);
  }

  update({ children }, page) {
    this.#children.update(children, page);
  }
}

class ItemView extends ContainerView {
  update(item, page) {
    super.update(item, page);
    if (item.children[0]?.task) this.node.className = 'task';
    else this.node.removeAttribute('class');
  }
}

class TableView {
  #head = h('thead');
  #body = h('tbody');
  #headRows = new BlockViews(this.#head);
  #bodyRows = new BlockViews(this.#body);
  node = h('div', { class: 'table-scroll', tabindex: '0', role: 'region', 'aria-label': 'Table' },
    h('table', {}, this.#head, this.#body));

  update(table, page) {
    const [head, ...rows] = table.rows;
    const row = (tag) => (cells, i, all) => rowOf(table, tag, cells, table.isOpen && i === all.length - 1);
    this.#headRows.update([head].map(row('th')), page);
    this.#bodyRows.update(rows.map(row('td')), page);
  }
}

function rowOf({ alignments }, tag, cells, isOpen) {
  const children = cells.map((text, column) =>
    ({ type: 'cell', tag, text, alignment: alignments[column], isOpen: isOpen && column === cells.length - 1 }));
  return { type: 'row', children };
}
