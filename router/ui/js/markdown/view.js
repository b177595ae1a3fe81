// A text of Markdown that may still grow, shown in an element. Only its last blocks are read again and touched; all that
// is before them can no longer change, but for references whose definition comes later.

import { BlockViews } from './block-views.js';
import { parseBlocks } from './blocks.js';
import { Definitions } from './links.js';

export class MarkdownView {
  #views;
  #definitions = new Definitions();
  #blocks = [];
  #text = '';
  #isOpen = false;
  // The first block that more text can change.
  #resume = { index: 0, position: 0 };

  constructor(root) {
    this.#views = new BlockViews(root);
  }

  // `isOpen` tells that more text comes: then its end is shown as what it is about to be.
  update(text, isOpen = false) {
    if (text === this.#text && isOpen === this.#isOpen) return;
    const { index, position } = this.#resumeFor(text);
    const before = String(this.#definitions);
    this.#definitions.dropFrom(position);
    const { blocks, resume } = parseBlocks(text, this.#definitions, { from: position, isOpen });
    this.#blocks = [...this.#blocks.slice(0, index), ...blocks];
    this.#views.update(this.#blocks, { definitions: this.#definitions, areDefinitionsNew: String(this.#definitions) !== before });
    this.#resume = { index: index + resume.index, position: resume.position };
    this.#text = text;
    this.#isOpen = isOpen;
  }

  #resumeFor(text) {
    const { position } = this.#resume;
    return text.startsWith(this.#text.slice(0, position)) ? this.#resume : { index: 0, position: 0 };
  }
}
