// The field in which a message is typed: grows with its text, Enter sends, Shift+Enter breaks the line, Esc stops.

import { byId, setIcon } from './dom.js';
import { erase, load, store } from './storage.js';

const DRAFT = 'penstock.draft';

export function startComposer(chat) {
  const [form, field, button] = [byId('composer'), byId('message'), byId('send')];
  field.value = load(sessionStorage, DRAFT) ?? '';

  const show = () => {
    button.disabled = !chat.busy && !field.value.trim();
    setIcon(button, chat.busy ? 'stop' : 'send');
    button.setAttribute('aria-label', chat.busy ? 'Stop answering' : 'Send message');
    button.title = chat.busy ? 'Stop (Esc)' : 'Send (Enter)';
    grow(field);
  };
  const send = () => {
    const text = field.value.trim();
    if (!text || chat.busy) return;
    field.value = '';
    erase(sessionStorage, DRAFT);
    chat.send(text);
    show();
  };

  form.addEventListener('submit', (event) => {
    event.preventDefault();
    if (chat.busy) chat.stop();
    else send();
  });
  field.addEventListener('input', () => {
    store(sessionStorage, DRAFT, field.value);
    show();
  });
  field.addEventListener('keydown', (event) => onKey(event, { field, chat, send }));
  chat.addEventListener('change', show);
  show();
}

function onKey(event, { field, chat, send }) {
  if (event.isComposing) return;
  if (event.key === 'Enter' && !event.shiftKey) {
    event.preventDefault();
    send();
  } else if (event.key === 'ArrowUp' && field.value === '' && !chat.busy) {
    event.preventDefault();
    chat.editLast();
  }
}

// `field-sizing: content` does this in newer browsers; measuring does it in the others.
const sizesItself = CSS.supports('field-sizing', 'content');

function grow(field) {
  if (sizesItself) return;
  field.style.height = 'auto';
  field.style.height = `${field.scrollHeight}px`;
}
