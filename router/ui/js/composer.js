// The field in which a message is typed: grows with its text, Enter sends, Shift+Enter breaks the line, Esc stops.

import { Attachments } from './attachments.js';
import { setIcon } from './dom.js';
import { erase, load, store } from './storage.js';

// `chat` has `send(text, files)`, `stop()`, `editLast()`, `busy`, and emits `change`. `draft` is the key of what is typed.
export function startComposer(area, chat, draft) {
  const [form, field, button] = ['form', 'textarea', '.send'].map((selector) => area.querySelector(selector));
  const sendLabel = button.getAttribute('aria-label');
  const attachments = new Attachments(area, `${draft}.files`);
  field.value = load(sessionStorage, draft) ?? '';

  const show = () => {
    button.disabled = !chat.busy && !field.value.trim() && !attachments.count;
    setIcon(button, chat.busy ? 'stop' : 'send');
    button.setAttribute('aria-label', chat.busy ? 'Stop answering' : sendLabel);
    button.title = chat.busy ? 'Stop (Esc)' : 'Send (Enter)';
    grow(field);
  };
  const send = () => {
    const text = field.value.trim();
    if (chat.busy || (!text && !attachments.count)) return;
    field.value = '';
    erase(sessionStorage, draft);
    chat.send(text, attachments.take());
    show();
  };

  form.addEventListener('submit', (event) => {
    event.preventDefault();
    if (chat.busy) chat.stop();
    else send();
  });
  field.addEventListener('input', () => {
    store(sessionStorage, draft, field.value);
    show();
  });
  field.addEventListener('keydown', (event) => onKey(event, { field, chat, send }));
  attachments.addEventListener('change', show);
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
