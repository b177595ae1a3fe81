// The list of conversations: open, share, rename, delete, export, import.

import { announce } from './announce.js';
import { byId, h, iconButton } from './dom.js';
import { download } from './download.js';
import { share } from './share.js';
import { toast } from './toast.js';

export function startConversations(history, chat, opened) {
  const list = byId('conversation-list');
  const act = {
    open: (id) => { chat.open(id); opened(); },
    rename: (id, title) => { shown = null; chat.rename(id, title); history.rename(id, title); },
    share: (id) => share(history.get(id)),
    remove: (heading) => remove(history, chat, heading),
  };
  let shown;
  const show = () => {
    const headings = history.list();
    // Saving happens often while an answer streams; rebuilding the same list would take the focus away.
    const now = JSON.stringify([chat.id, headings.map(({ id, title }) => [id, title])]);
    if (now === shown) return;
    shown = now;
    list.replaceChildren(...items(headings, chat.id, act));
  };
  history.addEventListener('change', show);
  chat.addEventListener('change', show);
  history.addEventListener('full', () => toast('The browser has no room for more conversations. Export them, then delete some.'));
  byId('new-chat').addEventListener('click', () => { chat.start(); opened(); byId('message').focus(); });
  byId('export').addEventListener('click', () => download(`penstock-conversations-${new Date().toISOString().slice(0, 10)}.json`, 'application/json', history.export()));
  startImport(history);
  show();
}

const items = (headings, current, act) =>
  headings.length ? headings.map((heading) => item(heading, heading.id === current, act)) : [h('li', { class: 'none' }, 'No conversations yet')];

function item(heading, isCurrent, act) {
  const title = heading.title || 'Untitled';
  const open = h('button', { type: 'button', class: 'conversation', 'aria-current': isCurrent && 'true', title,
    onclick: () => act.open(heading.id) }, title);
  const row = h('li', {}, open,
    iconButton('share', `Share ${title} as Markdown`, () => act.share(heading.id), 'small'),
    iconButton('edit', `Rename ${title}`, () => startRename(row, heading, act), 'small'),
    iconButton('trash', `Delete ${title}`, () => act.remove(heading), 'small'));
  return row;
}

function startRename(row, heading, act) {
  const field = h('input', { class: 'field', value: heading.title, 'aria-label': 'Name of the conversation', maxlength: 200 });
  let done = false;
  const finish = (keep) => {
    if (done) return;
    done = true;
    act.rename(heading.id, (keep && field.value.trim()) || heading.title);
  };
  field.addEventListener('blur', () => finish(true));
  field.addEventListener('keydown', (event) => {
    if (event.key === 'Enter') finish(true);
    if (event.key === 'Escape') { event.stopPropagation(); finish(false); }
  });
  row.replaceChildren(field);
  field.select();
}

// Deletes at once and offers to undo, rather than asking first.
function remove(history, chat, { id, title }) {
  const conversation = history.get(id);
  history.remove(id);
  if (chat.id === id) chat.start();
  toast(`Deleted “${title || 'Untitled'}”`, conversation && { label: 'Undo', run: () => history.restore(conversation) });
}

function startImport(history) {
  const input = byId('import-file');
  byId('import').addEventListener('click', () => input.click());
  input.addEventListener('change', async () => {
    const [file] = input.files;
    input.value = '';
    if (!file) return;
    try {
      const count = history.import(await file.text());
      toast(`Imported ${count} ${count === 1 ? 'conversation' : 'conversations'}`);
    } catch (error) {
      toast(error instanceof SyntaxError ? 'This file is not JSON.' : error.message);
    }
    announce('Import finished');
  });
}
