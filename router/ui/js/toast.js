// Short notes at the bottom of the page, with at most one action.

import { byId, h } from './dom.js';

const SHOWN_MS = 6000;

export function toast(text, action) {
  const note = h('div', { class: 'toast', role: 'status' }, h('span', {}, text));
  const close = () => note.remove();
  if (action) note.append(h('button', { type: 'button', class: 'link', onclick: () => { action.run(); close(); } }, action.label));
  byId('toasts').replaceChildren(note);
  setTimeout(close, SHOWN_MS);
}
