// The panel at the side: its fields are stored as they are typed, and read back with `values()`. The markup is in
// index.html: each field has a `name`; what it means for a request is in request.js.

import { byId } from './dom.js';
import { apiKey, isRemembered, setApiKey } from './key.js';
import { parse } from './request.js';
import { loadJson, storeJson } from './storage.js';
import { EXAMPLE_SCHEMA, EXAMPLE_TOOLS } from './examples.js';

const KEY = 'penstock.settings';

export class Settings extends EventTarget {
  #form = byId('settings-form');

  constructor() {
    super();
    this.#restore();
    this.#form.addEventListener('input', () => this.#changed());
    this.#form.addEventListener('submit', (event) => event.preventDefault());
    byId('settings-reset').addEventListener('click', () => this.#reset());
    byId('example-schema').addEventListener('click', () => this.#example('schema', EXAMPLE_SCHEMA));
    byId('example-tools').addEventListener('click', () => this.#example('tools', EXAMPLE_TOOLS));
    startKeyField();
    this.#show();
  }

  values() {
    return Object.fromEntries(new FormData(this.#form));
  }

  #restore() {
    for (const [name, value] of Object.entries(loadJson(localStorage, KEY, {}))) {
      const field = this.#form.elements[name];
      if (field) field.value = value;
    }
  }

  #changed() {
    storeJson(localStorage, KEY, this.values());
    this.#show();
  }

  #reset() {
    this.#form.reset();
    this.#changed();
  }

  #example(name, value) {
    this.#form.elements[name].value = JSON.stringify(value, null, 2);
    this.#changed();
  }

  #show() {
    const values = this.values();
    for (const part of this.#form.querySelectorAll('[data-format]')) part.hidden = part.dataset.format !== values.format;
    byId('tool-choice-field').hidden = !values.tools.trim();
    showProblem('schema', values.format === 'schema' ? problem('JSON schema', values.schema) : '');
    showProblem('tools', values.tools.trim() ? problem('list of tools', values.tools) : '');
    byId('settings-count').textContent = countOf(values);
  }
}

function problem(what, text) {
  try {
    parse(what, text);
    return '';
  } catch (error) {
    return error.message;
  }
}

function showProblem(name, message) {
  const line = byId(`${name}-problem`);
  line.textContent = message;
  byId(name).setAttribute('aria-invalid', message ? 'true' : 'false');
}

const SAMPLING = ['temperature', 'topP', 'topK', 'maxTokens', 'seed', 'frequencyPenalty', 'presencePenalty', 'repetitionPenalty', 'stop'];

function countOf(values) {
  const count = SAMPLING.filter((name) => values[name]).length;
  return count ? `${count} set` : 'server defaults';
}

function startKeyField() {
  const [field, remember] = [byId('api-key'), byId('api-key-remember')];
  field.value = apiKey();
  remember.checked = isRemembered();
  const keep = () => {
    setApiKey(field.value.trim(), remember.checked);
    dispatchEvent(new Event('penstock:key-changed'));
  };
  field.addEventListener('input', keep);
  remember.addEventListener('change', keep);
}
