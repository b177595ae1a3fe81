// Two answers side by side: each message goes to both sides, and each side has a model and settings of its own. What a side
// leaves empty is taken from the panel of settings.

import { byId } from './dom.js';
import { History } from './history.js';
import { CompareSide } from './compare-side.js';

// Emits `change` and `problem`, as a chat does.
export class Compare extends EventTarget {
  #sides;

  constructor({ settings, models }) {
    super();
    this.#sides = ['A', 'B'].map((name) => new CompareSide(name, { settings, models, focus: () => byId('compare-message').focus() }));
    byId('compare-sides').append(...this.#sides.map((side) => side.root));
    for (const { thread } of this.#sides) {
      thread.addEventListener('change', () => this.#changed());
      thread.addEventListener('problem', ({ detail }) => this.dispatchEvent(new CustomEvent('problem', { detail })));
    }
    byId('compare-new').addEventListener('click', () => this.#start());
  }

  get busy() {
    return this.#sides.some(({ thread }) => thread.busy);
  }

  // After a reload: what was there in this tab.
  resume() {
    for (const side of this.#sides) side.resume();
  }

  leave() {
    for (const side of this.#sides) side.leave();
  }

  async send(text, files) {
    await Promise.all(this.#sides.map(({ thread }) => thread.send(text, files)));
  }

  stop() {
    for (const { thread } of this.#sides) thread.stop();
  }

  // A question is edited on one side only: then both sides are asked different things, on purpose.
  editLast() {}

  #start() {
    for (const { thread } of this.#sides) thread.open(History.create());
    byId('compare-message').focus();
  }

  #changed() {
    this.dispatchEvent(new Event('change'));
  }
}
