// One side of a comparison: a model, settings that differ from the panel's, and the thread. Kept in this tab.

import { h, icon } from './dom.js';
import { History } from './history.js';
import { ModelField } from './models.js';
import { chatBody } from './request.js';
import { erase, loadJson, storeJson } from './storage.js';
import { Thread } from './thread.js';

const FIELDS = [
  ['temperature', 'Temperature', { type: 'number', min: '0', max: '2', step: '0.1' }],
  ['topP', 'Top p', { type: 'number', min: '0', max: '1', step: '0.05' }],
  ['maxTokens', 'Max tokens', { type: 'number', min: '1', step: '1' }],
  ['seed', 'Seed', { type: 'number', min: '0', step: '1' }],
];

export class CompareSide {
  #name;
  #form;
  #model;
  #leaving = false;

  constructor(name, { settings, models, focus }) {
    this.#name = name;
    const select = h('select', { class: 'field', disabled: true, 'aria-label': `Model of side ${name}` }, h('option', { value: '' }, 'default'));
    const area = h('div', { class: 'thread', role: 'log', 'aria-live': 'off', 'aria-label': `Conversation of side ${name}`, tabindex: '0' });
    const toLatest = h('button', { type: 'button', class: 'to-latest', 'aria-label': `To the latest message of side ${name}`, hidden: true }, icon('down'));
    this.#form = this.#settingsForm(select);
    this.root = h('section', { class: 'compare-side', 'aria-label': `Side ${name}` }, this.#form, area, h('div', { class: 'to-latest-area' }, toLatest));
    this.#model = new ModelField(select, models, this.#key('model'));
    this.thread = new Thread(area, toLatest, {
      body: (conversation) => this.#body(conversation, settings.values()),
      save: (conversation) => this.#save(conversation),
      empty: () => h('p', { class: 'empty' }, `Answers of side ${name} appear here.`),
      focus,
    });
  }

  resume() {
    this.thread.open(loadJson(sessionStorage, this.#key('conversation'), null) ?? History.create());
  }

  // The page is being left: stores what is there, and not the broken connection that follows.
  leave() {
    if (this.thread.busy) this.#save(this.thread.conversation);
    this.#leaving = true;
  }

  #key(what) {
    return `penstock.compare.${this.#name}.${what}`;
  }

  #settingsForm(select) {
    const fields = FIELDS.map(([name, label, props]) =>
      h('label', {}, label, h('input', { name, class: 'field', placeholder: 'as set', ...props })));
    const system = h('label', { class: 'wide' }, 'System prompt', h('textarea', { name: 'system', class: 'field', rows: 2, placeholder: 'none' }));
    const form = h('form', { class: 'compare-settings', autocomplete: 'off', onsubmit: (event) => event.preventDefault() },
      h('div', { class: 'compare-model' }, h('b', {}, this.#name), select),
      h('details', {}, h('summary', {}, 'Differs in'), h('div', { class: 'fields' }, fields, system)));
    for (const [name, value] of Object.entries(loadJson(localStorage, this.#key('settings'), {}))) {
      if (form.elements[name]) form.elements[name].value = value;
    }
    form.addEventListener('input', () => storeJson(localStorage, this.#key('settings'), this.#values()));
    return form;
  }

  // What this side sets; empty fields are left out.
  #values() {
    return Object.fromEntries([...new FormData(this.#form)].filter(([, value]) => value.trim()));
  }

  async #body(conversation, settings) {
    const { system = '', ...own } = this.#values();
    return chatBody(await this.#model.chosen(), { ...conversation, system }, { ...settings, ...own });
  }

  #save(conversation) {
    if (this.#leaving || conversation !== this.thread.conversation) return;
    if (!storeJson(sessionStorage, this.#key('conversation'), conversation)) erase(sessionStorage, this.#key('conversation'));
  }
}
