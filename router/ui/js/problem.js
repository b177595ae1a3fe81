// What is shown when a request failed: a heading by kind, the server's own words, and what can be done now.

import { h, icon } from './dom.js';

const HEADINGS = {
  unreachable: 'The server cannot be reached',
  unauthorized: 'This server asks for an API key',
  overloaded: 'The server is overloaded',
  unavailable: 'The server does not take requests now',
  refused: 'The server refused this request',
  failed: 'The generation failed',
  cut: 'The answer was cut off',
  interrupted: 'The answer was interrupted',
  setting: 'A setting is not valid',
};

export function problemCard({ kind, message, retryAfter }, retry) {
  const wait = retryAfter ? ` It asks to wait ${retryAfter}\u00a0s.` : '';
  return h('div', { class: `problem ${kind === 'overloaded' ? 'mild' : ''}`, role: 'alert' },
    icon('alert'),
    h('div', {},
      h('p', { class: 'problem-head' }, HEADINGS[kind] ?? 'Something went wrong'),
      message && h('p', { class: 'problem-text' }, message + wait),
      h('p', { class: 'problem-actions' },
        kind === 'unauthorized' && h('button', { type: 'button', class: 'button', onclick: askForKey }, 'Enter key'),
        retry && h('button', { type: 'button', class: 'button', onclick: () => retry() }, 'Try again'))));
}

const askForKey = () => dispatchEvent(new Event('penstock:ask-for-key'));
