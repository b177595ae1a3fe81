// The chat: which conversation is open, and that it is stored. The thread (thread.js) shows it and sends it; it is typed in
// composer.js and stored in history.js.

import { byId } from './dom.js';
import { emptyThread } from './empty.js';
import { History } from './history.js';
import { chatBody } from './request.js';
import { load, store } from './storage.js';
import { Thread } from './thread.js';

const OPEN = 'penstock.open';

// Passes on the events of its thread.
export class Chat extends EventTarget {
  #history;
  #thread;
  #leaving = false;

  constructor({ history, settings, model }) {
    super();
    this.#history = history;
    this.#thread = new Thread(byId('thread'), byId('to-latest'), {
      body: async (conversation) => chatBody(await model.chosen(), conversation, settings.values()),
      save: (conversation) => this.#save(conversation),
      empty: () => emptyThread((text) => this.send(text)),
      focus: () => byId('message').focus(),
    });
    this.#thread.addEventListener('change', () => this.dispatchEvent(new Event('change')));
    this.#thread.addEventListener('problem', ({ detail }) => this.dispatchEvent(new CustomEvent('problem', { detail })));
    byId('system').addEventListener('input', ({ target }) => this.#setSystem(target.value));
  }

  get id() {
    return this.#thread.conversation?.id;
  }

  get busy() {
    return this.#thread.busy;
  }

  open(id) {
    this.stop();
    const conversation = this.#history.get(id) ?? History.create();
    store(sessionStorage, OPEN, conversation.id);
    byId('system').value = conversation.system;
    this.#thread.open(conversation);
  }

  start() {
    this.open(null);
  }

  // The page is being left: stores what is there, and not the broken connection that follows.
  leave() {
    if (this.busy) this.#history.save(this.#thread.conversation);
    this.#leaving = true;
  }

  // After a reload: what was open in this tab.
  resume() {
    this.open(load(sessionStorage, OPEN));
  }

  send(text, files) {
    return this.#thread.send(text, files);
  }

  stop() {
    this.#thread.stop();
  }

  rename(id, title) {
    if (id === this.id) this.#thread.conversation.title = title;
  }

  editLast() {
    this.#thread.editLast();
  }

  #setSystem(text) {
    const { conversation } = this.#thread;
    conversation.system = text;
    if (conversation.messages.length) this.#history.save(conversation);
  }

  // An answer may end after its conversation was closed or deleted: it is stored only where it still belongs.
  #save(conversation) {
    if (this.#leaving) return;
    if (conversation === this.#thread.conversation || this.#history.get(conversation.id)) this.#history.save(conversation);
  }
}
