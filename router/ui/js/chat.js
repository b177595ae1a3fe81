// The chat: holds the open conversation, sends it, and keeps the thread showing it. What a message looks like is in
// message.js, how it is typed in composer.js, how it is stored in history.js.

import { announce, SentenceAnnouncer } from './announce.js';
import { Answer } from './answer.js';
import { streamJson } from './api.js';
import { byId, oncePerFrame } from './dom.js';
import { History, newId } from './history.js';
import { MessageView } from './message.js';
import { chatBody } from './request.js';
import { Scroller } from './scroller.js';
import { emptyThread } from './empty.js';
import { load, store } from './storage.js';

const OPEN = 'penstock.open';
const SAVE_EVERY_MS = 1000;

export class Chat extends EventTarget {
  #history;
  #settings;
  #models;
  #conversation = History.create();
  #views = [];
  #thread = byId('thread');
  #scroller = new Scroller(byId('thread'), byId('to-latest'));
  #running = null;
  #leaving = false;

  constructor({ history, settings, models }) {
    super();
    this.#history = history;
    this.#settings = settings;
    this.#models = models;
    byId('system').addEventListener('input', ({ target }) => this.#setSystem(target.value));
  }

  get id() {
    return this.#conversation.id;
  }

  get busy() {
    return this.#running !== null;
  }

  open(id) {
    this.stop();
    this.#conversation = this.#history.get(id) ?? History.create();
    for (const message of this.#conversation.messages) endUnfinished(message);
    store(sessionStorage, OPEN, this.#conversation.id);
    this.#show();
    this.#changed();
  }

  start() {
    this.open(null);
  }

  // The page is being left: stores what is there, and not the broken connection that follows.
  leave() {
    if (this.busy) this.#history.save(this.#conversation);
    this.#leaving = true;
  }

  // After a reload: what was open in this tab.
  resume() {
    this.open(load(sessionStorage, OPEN));
  }

  send(text) {
    this.#push({ id: newId(), role: 'user', content: text });
    return this.#answer();
  }

  stop() {
    this.#running?.abort();
  }

  rename(id, title) {
    if (id === this.id) this.#conversation.title = title;
  }

  editLast() {
    this.#views.findLast(({ message }) => message.role === 'user')?.edit();
  }

  #setSystem(text) {
    this.#conversation.system = text;
    if (this.#conversation.messages.length) this.#history.save(this.#conversation);
  }

  #show() {
    byId('system').value = this.#conversation.system;
    this.#views = [];
    this.#thread.replaceChildren();
    for (const message of this.#conversation.messages) this.#view(message);
    this.#showEmpty();
    this.#scroller.toEnd();
  }

  #showEmpty() {
    if (this.#views.length) this.#thread.querySelector('.empty')?.remove();
    else this.#thread.replaceChildren(emptyThread((text) => this.send(text)));
  }

  #push(message) {
    this.#conversation.messages.push(message);
    const view = this.#view(message);
    this.#showEmpty();
    this.#history.save(this.#conversation);
    this.#changed();
    return view;
  }

  #view(message) {
    const view = new MessageView(message, {
      edit: (text) => this.#edit(message, text),
      regenerate: () => this.#regenerate(message),
      needsResult: (call) => this.#needsResult(message, call),
      toolResult: (call, text) => this.#giveToolResult(message, call, text),
    });
    this.#views.push(view);
    this.#thread.append(view.root);
    return view;
  }

  // Everything from the message on is dropped.
  #cutAt(message) {
    this.stop();
    const at = this.#conversation.messages.indexOf(message);
    this.#conversation.messages.splice(at);
    for (const view of this.#views.splice(at)) view.root.remove();
  }

  #edit(message, text) {
    this.#cutAt(message);
    byId('message').focus();
    return this.send(text);
  }

  #regenerate(message) {
    this.#cutAt(message);
    return this.#answer();
  }

  #giveToolResult(message, call, text) {
    this.#push({ id: newId(), role: 'tool', content: text, toolCallId: call.id, name: call.name });
    if (!message.toolCalls.some((other) => this.#needsResult(message, other))) this.#answer();
  }

  // Whether no result follows this call. Some servers number the calls of each answer anew, hence the search from there.
  #needsResult(message, call) {
    const { messages } = this.#conversation;
    const following = messages.slice(messages.indexOf(message) + 1);
    return !following.some(({ role, toolCallId }) => role === 'tool' && toolCallId === call.id);
  }

  async #answer() {
    this.stop();
    const conversation = this.#conversation;
    const asked = { ...conversation, messages: [...conversation.messages] };
    const running = (this.#running = new AbortController());
    const message = { id: newId(), role: 'assistant', content: '', streaming: true };
    const view = this.#push(message);
    this.#scroller.toEnd();
    announce('Answering');
    const save = () => this.#save(conversation, message);
    await this.#stream(asked, message, { view, save, signal: running.signal });
    delete message.streaming;
    delete message.thinking;
    this.#scroller.keep(() => view.update());
    save();
    if (this.#running === running) this.#running = null;
    this.#changed();
  }

  // Never throws: whatever ends the answer is written into the message.
  async #stream(asked, message, { view, save, signal }) {
    const answer = new Answer();
    const sentences = new SentenceAnnouncer();
    const saver = new Saver(save);
    const show = oncePerFrame(() => {
      if (message.streaming) this.#scroller.keep(() => view.update());
    });
    try {
      const body = chatBody(this.#models.chosen, asked, this.#settings.values());
      for await (const chunk of streamJson('v1/chat/completions', body, signal)) {
        answer.add(chunk);
        Object.assign(message, { thinking: false }, answer.message());
        show();
        sentences.update(message.content);
        saver.maybe();
      }
      message.finishReason = answer.finishReason;
      sentences.update(message.content, true);
    } catch (error) {
      this.#failed(message, error);
    }
  }

  #failed(message, error) {
    if (error.name === 'AbortError') {
      message.finishReason = 'stopped';
      announce('Stopped');
      return;
    }
    message.error = { kind: error.kind ?? 'page', message: error.message, retryAfter: error.retryAfter ?? 0 };
    announce(error.message);
    this.dispatchEvent(new CustomEvent('problem', { detail: error }));
  }

  // An answer may end after its conversation was closed, deleted or cut: it is stored only where it still belongs.
  #save(conversation, message) {
    if (this.#leaving) return;
    const known = conversation === this.#conversation || this.#history.get(conversation.id);
    if (known && conversation.messages.includes(message)) this.#history.save(conversation);
  }

  #changed() {
    this.dispatchEvent(new Event('change'));
  }
}

// An answer that a reload broke off.
function endUnfinished(message) {
  if (!message.streaming) return;
  delete message.streaming;
  delete message.thinking;
  message.finishReason = 'stopped';
}

// Stores a growing answer now and then, so that a reload in its middle keeps what was there.
class Saver {
  #last = performance.now();
  #save;

  constructor(save) {
    this.#save = save;
  }

  maybe() {
    if (performance.now() - this.#last < SAVE_EVERY_MS) return;
    this.#last = performance.now();
    this.#save();
  }
}
