// A block of code: language, copy button, scrolls sideways, and can grow in place while it streams.

import { h } from './dom.js';
import { copyButton } from './copy.js';

export function codeBlock(text, language) {
  const code = h('code');
  const name = h('span');
  const head = h('div', { class: 'code-head' }, name, copyButton('Copy code', () => code.textContent));
  const pre = h('pre', { tabindex: '0', role: 'region' }, code);
  const root = h('div', { class: 'code' }, head, pre);
  root.update = (text, language) => {
    name.textContent = language || 'code';
    pre.setAttribute('aria-label', `Code ${language}`.trim());
    growText(code, text);
  };
  root.update(text, language);
  return root;
}

// Appending keeps what the user has selected.
function growText(element, text) {
  const node = element.firstChild;
  if (node && text.startsWith(node.data)) node.appendData(text.slice(node.data.length));
  else element.textContent = text;
}
