// A block of code: language, copy button, scrolls sideways, and can grow in place while it streams.

import { h } from './dom.js';
import { copyButton } from './copy.js';

export function codeBlock(text, language) {
  const code = h('code', {}, text);
  const head = h('div', { class: 'code-head' },
    h('span', {}, language || 'code'), copyButton('Copy code', () => code.textContent));
  const pre = h('pre', { tabindex: '0', role: 'region', 'aria-label': `Code ${language}`.trim() }, code);
  const root = h('div', { class: 'code' }, head, pre);
  root.update = (longer) => {
    const node = code.firstChild;
    // Appending keeps what the user has selected.
    if (node && longer.startsWith(node.data)) node.appendData(longer.slice(node.data.length));
    else code.textContent = longer;
  };
  return root;
}
