// What an empty conversation shows instead of a blank page.

import { h } from './dom.js';
import { STARTERS } from './examples.js';

export const emptyThread = (send) =>
  h('div', { class: 'empty' },
    h('h2', {}, 'Ask the model'),
    h('p', {}, 'Conversations stay in this browser. Enter sends, Shift+Enter starts a new line, Esc stops an answer.'),
    h('ul', { class: 'starters' }, STARTERS.map((text) =>
      h('li', {}, h('button', { type: 'button', class: 'starter', onclick: () => send(text) }, text)))));
