// The two side panels: beside the thread where there is room, over it (with a scrim) where there is not. A panel
// that is closed is inert, so the keyboard does not wander into it.

import { byId } from './dom.js';
import { load, store } from './storage.js';

const NARROW = { conversations: matchMedia('(max-width: 860px)'), settings: matchMedia('(max-width: 1180px)') };

export function startDrawers() {
  const drawers = Object.keys(NARROW).map((name) => new Drawer(name));
  byId('scrim').addEventListener('click', () => drawers.forEach((drawer) => drawer.closeOver()));
  addEventListener('keydown', (event) => {
    if (event.key !== 'Escape' || !drawers.some((drawer) => drawer.isOver)) return;
    event.stopImmediatePropagation();
    drawers.forEach((drawer) => drawer.closeOver());
  }, { capture: true });
  return Object.fromEntries(drawers.map((drawer) => [drawer.name, drawer]));
}

class Drawer {
  #panel;
  #button;

  constructor(name) {
    this.name = name;
    this.#panel = byId(name);
    this.#button = byId(`toggle-${name}`);
    this.#button.addEventListener('click', () => this.#set(!this.isOpen, true));
    NARROW[name].addEventListener('change', () => this.#reset());
    this.#reset();
  }

  get isOpen() {
    return this.#panel.dataset.open === 'true';
  }

  // Open on top of the page, not beside it.
  get isOver() {
    return this.isOpen && NARROW[this.name].matches;
  }

  open() {
    if (!this.isOpen) this.#set(true, false);
  }

  closeOver() {
    if (!this.isOver) return;
    this.#set(false, false);
    this.#button.focus();
  }

  // Wide: as it was left. Narrow: closed.
  #reset() {
    this.#set(!NARROW[this.name].matches && load(localStorage, `penstock.${this.name}`) !== 'closed', false);
  }

  #set(open, remember) {
    this.#panel.dataset.open = String(open);
    this.#panel.inert = !open;
    this.#button.setAttribute('aria-expanded', String(open));
    byId('scrim').hidden = !Object.keys(NARROW).some((name) => NARROW[name].matches && byId(name).dataset.open === 'true');
    if (remember && !NARROW[this.name].matches) store(localStorage, `penstock.${this.name}`, open ? 'open' : 'closed');
    if (open && this.isOver) this.#panel.querySelector('button, input, select, textarea')?.focus();
  }
}
