// The conversations, kept in this browser's localStorage: a list of headings, and each conversation under its own
// key. Emits `change` when the list changes, also from another tab, and `full` when the browser has no room left.

import { erase, loadJson, storeJson } from './storage.js';

const LIST = 'penstock.conversations';
const keyOf = (id) => `penstock.conversation.${id}`;
const FORMAT = 'penstock-conversations';
const ROLES = ['user', 'assistant', 'tool'];

export const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(8)), (b) => b.toString(16).padStart(2, '0')).join('');

export class History extends EventTarget {
  constructor() {
    super();
    addEventListener('storage', ({ key }) => key === LIST && this.#changed());
  }

  // Headings, latest first: {id, title, updated}.
  list() {
    return loadJson(localStorage, LIST, []).sort((a, b) => b.updated - a.updated);
  }

  // {id, title, system, created, updated, messages}, or null.
  get(id) {
    return loadJson(localStorage, keyOf(id), null);
  }

  static create() {
    const now = Date.now();
    return { id: newId(), title: '', system: '', created: now, updated: now, messages: [] };
  }

  save(conversation) {
    conversation.title ||= titleOf(conversation.messages);
    conversation.updated = Date.now();
    this.#put(conversation);
  }

  rename(id, title) {
    const conversation = this.get(id);
    if (conversation) this.#put({ ...conversation, title });
  }

  // Puts a removed conversation back as it was.
  restore(conversation) {
    this.#put(conversation);
  }

  remove(id) {
    erase(localStorage, keyOf(id));
    this.#saveList(this.list().filter((heading) => heading.id !== id));
  }

  export() {
    const conversations = this.list().map(({ id }) => this.get(id)).filter(Boolean);
    return JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 2);
  }

  // Adds the conversations of an exported file; one that is here already is replaced if the file's is newer. Returns how many.
  import(text) {
    const file = JSON.parse(text);
    if (file?.format !== FORMAT || !Array.isArray(file.conversations)) throw new Error('This file is not an export of conversations.');
    const conversations = file.conversations.map(checkedConversation);
    for (const conversation of conversations) {
      if ((this.get(conversation.id)?.updated ?? 0) < conversation.updated) this.#put(conversation);
    }
    return conversations.length;
  }

  #put(conversation) {
    const stored = storeJson(localStorage, keyOf(conversation.id), conversation);
    const { id, title, updated } = conversation;
    const others = this.list().filter((heading) => heading.id !== id);
    if (!stored || !this.#saveList([...others, { id, title, updated }])) this.dispatchEvent(new Event('full'));
  }

  #saveList(list) {
    const stored = storeJson(localStorage, LIST, list);
    this.#changed();
    return stored;
  }

  #changed() {
    this.dispatchEvent(new Event('change'));
  }
}

function titleOf(messages) {
  const question = messages.find(({ role }) => role === 'user');
  const first = question?.content || question?.files?.[0].name || '';
  const line = first.trim().split('\n')[0];
  return line.length > 60 ? `${line.slice(0, 59)}…` : line;
}

// Keeps the known fields of an imported conversation and refuses what has another shape.
function checkedConversation(value) {
  const { id, title, system, created, updated, messages } = value ?? {};
  if (!/^[0-9a-f]{16}$/.test(id) || !Array.isArray(messages)) throw new Error('A conversation in this file is damaged.');
  return { id, title: text(title), system: text(system), created: number(created), updated: number(updated),
    messages: messages.map(checkedMessage) };
}

function checkedMessage(value) {
  const { role, content, files, reasoning, toolCalls, toolCallId, name, stats, finishReason } = value ?? {};
  if (!ROLES.includes(role)) throw new Error('A message in this file is damaged.');
  return {
    id: newId(), role, content: text(content),
    ...(Array.isArray(files) && { files: files.map(checkedFile) }),
    ...(reasoning && { reasoning: text(reasoning) }),
    ...(Array.isArray(toolCalls) && { toolCalls: toolCalls.map(checkedToolCall) }),
    ...(toolCallId && { toolCallId: text(toolCallId), name: text(name) }),
    ...(finishReason && { finishReason: text(finishReason) }),
    ...(stats && typeof stats === 'object' && { stats: checkedStats(stats) }),
  };
}

const checkedFile = (file) => ({ name: text(file?.name), text: text(file?.text) });
const checkedToolCall = (call) => ({ id: text(call?.id), name: text(call?.name), arguments: text(call?.arguments) });
const checkedStats = (stats) => Object.fromEntries(Object.entries(stats).filter(([, value]) => typeof value === 'number'));
const text = (value) => (typeof value === 'string' ? value : '');
const number = (value) => (Number.isFinite(value) ? value : Date.now());
