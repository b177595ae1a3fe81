// One conversation on the screen: shows its messages, sends what is asked, and follows the answer as it streams. What a
// message looks like is in message.js. Its owner says what goes into a request, and where the conversation is stored.

import { announce, SentenceAnnouncer } from './announce.js';
import { Answer } from './answer.js';
import { streamJson } from './api.js';
import { oncePerFrame } from './dom.js';
import { newId } from './history.js';
import { MessageView } from './message.js';
import { Scroller } from './scroller.js';

const SAVE_EVERY_MS = 1000;

// Emits `change` when messages come or go and when an answer begins or ends, and `problem` with an error.
export class Thread extends EventTarget {
  #area;
  #scroller;
  #owner;
  #conversation;
  #views = [];
  #running = null;

  // `owner` has `body(conversation)`, a promise of the body of a request; `save(conversation)`; `empty()`, what an empty
  // conversation shows; and `focus()`, which goes to the field where messages are typed.
  constructor(area, toLatest, owner) {
    super();
    this.#area = area;
    this.#scroller = new Scroller(area, toLatest);
    this.#owner = owner;
  }

  get conversation() {
    return this.#conversation;
  }

  get busy() {
    return this.#running !== null;
  }

  open(conversation) {
    this.stop();
    this.#conversation = conversation;
    for (const message of conversation.messages) endUnfinished(message);
    this.#views = [];
    this.#area.replaceChildren();
    for (const message of conversation.messages) this.#view(message);
    this.#showEmpty();
    this.#scroller.toEnd();
    this.#changed();
  }

  send(text, files = []) {
    this.#push({ id: newId(), role: 'user', content: text, ...(files.length && { files }) });
    return this.#answer();
  }

  stop() {
    this.#running?.abort();
  }

  editLast() {
    this.#views.findLast(({ message }) => message.role === 'user')?.edit();
  }

  #showEmpty() {
    if (this.#views.length) this.#area.querySelector('.empty')?.remove();
    else this.#area.replaceChildren(this.#owner.empty());
  }

  #push(message) {
    this.#conversation.messages.push(message);
    const view = this.#view(message);
    this.#showEmpty();
    this.#owner.save(this.#conversation);
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
    this.#area.append(view.root);
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
    this.#owner.focus();
    return this.send(text, message.files);
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
    const save = () => conversation.messages.includes(message) && this.#owner.save(conversation);
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
      for await (const chunk of streamJson('v1/chat/completions', await this.#owner.body(asked), signal)) {
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
