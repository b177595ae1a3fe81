// Copy buttons. The clipboard needs a secure context; over plain HTTP from another machine the old command stands in.

import { announce } from './announce.js';
import { h, iconButton, setIcon } from './dom.js';

export function copyButton(label, text) {
  let timer;
  const button = iconButton('copy', label, async () => {
    const copied = await copy(text());
    setIcon(button, copied ? 'check' : 'alert');
    announce(copied ? 'Copied' : 'Copying failed');
    clearTimeout(timer);
    timer = setTimeout(() => setIcon(button, 'copy'), 1500);
  });
  return button;
}

// Whether it worked.
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

function copyBySelection(text) {
  const focused = document.activeElement;
  const area = h('textarea', { class: 'visually-hidden', 'aria-hidden': 'true', value: text });
  document.body.append(area);
  area.select();
  const copied = document.execCommand('copy');
  area.remove();
  focused?.focus();
  return copied;
}
