// The light and dark toggle. Without a choice the page follows the system; appearance-boot.js applies a stored choice.

import { setIcon } from './dom.js';
import { load, store } from './storage.js';

const KEY = 'penstock.theme';
const system = matchMedia('(prefers-color-scheme: dark)');

const isDark = () => (document.documentElement.dataset.theme ?? (system.matches ? 'dark' : 'light')) === 'dark';

function show(button) {
  setIcon(button, isDark() ? 'sun' : 'moon');
  button.setAttribute('aria-label', isDark() ? 'Use the light theme' : 'Use the dark theme');
  button.title = button.getAttribute('aria-label');
}

export function startAppearance(button) {
  button.addEventListener('click', () => {
    const theme = isDark() ? 'light' : 'dark';
    document.documentElement.dataset.theme = theme;
    store(localStorage, KEY, theme);
    show(button);
  });
  system.addEventListener('change', () => {
    if (!load(localStorage, KEY)) show(button);
  });
  show(button);
}
