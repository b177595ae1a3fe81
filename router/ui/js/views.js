// The tabs. Which one is open is in the address (#chat, #compare, #completion, #status), so reload and back work.

import { byId } from './dom.js';

const VIEWS = ['chat', 'compare', 'completion', 'status'];

export function startViews() {
  const tabs = VIEWS.map((name) => byId(`tab-${name}`));
  const show = () => showView(current(), tabs);
  for (const tab of tabs) tab.addEventListener('click', () => go(tab.dataset.view));
  byId('pill').addEventListener('click', () => go('status'));
  byId('tabs').addEventListener('keydown', (event) => onArrow(event, tabs));
  addEventListener('hashchange', show);
  show();
}

const current = () => VIEWS.find((name) => location.hash === `#${name}`) ?? 'chat';
const go = (name) => (location.hash = name);

function showView(name, tabs) {
  document.body.dataset.view = name;
  for (const tab of tabs) {
    const isOpen = tab.dataset.view === name;
    tab.setAttribute('aria-selected', String(isOpen));
    tab.tabIndex = isOpen ? 0 : -1;
    byId(`view-${tab.dataset.view}`).hidden = !isOpen;
  }
}

function onArrow(event, tabs) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const at = tabs.indexOf(event.target);
  if (!step || at < 0) return;
  event.preventDefault();
  const next = tabs[(at + step + tabs.length) % tabs.length];
  next.focus();
  next.click();
}
