// The models and adapters that the server has, from /v1/models, and the fields in which one is chosen.

import { getJson } from './api.js';
import { h } from './dom.js';
import { load, store } from './storage.js';

// Emits `change` when the list was read.
export class Models extends EventTarget {
  list = [];
  #asked = 0;
  #shown = 0;
  #settle;
  // Kept once the server was asked, whether it answered or not.
  known = new Promise((resolve) => (this.#settle = resolve));

  async refresh() {
    try {
      await this.#read();
    } finally {
      this.#settle();
    }
  }

  async #read() {
    const asked = ++this.#asked;
    const { data } = await getJson('v1/models');
    // Two answers may overtake each other: an older one changes nothing.
    if (asked < this.#shown || !Array.isArray(data) || !data.length) return;
    this.#shown = asked;
    this.list = data;
    this.dispatchEvent(new Event('change'));
  }
}

// A select with all models; the choice is remembered under `key`.
export class ModelField {
  #select;
  #models;
  #key;

  constructor(select, models, key) {
    this.#select = select;
    this.#models = models;
    this.#key = key;
    select.addEventListener('change', () => store(localStorage, key, select.value));
    models.addEventListener('change', () => this.#show(models.list));
  }

  // Waits for the first list, which has what was chosen before.
  async chosen() {
    await this.#models.known;
    return this.#select.value || 'tgi';
  }

  #show(list) {
    const wanted = this.#select.value || load(localStorage, this.#key);
    this.#select.replaceChildren(...list.map(option));
    if (list.some(({ id }) => id === wanted)) this.#select.value = wanted;
    this.#select.disabled = false;
    this.#select.title = this.#select.value;
  }
}

const option = ({ id, parent }) => h('option', { value: id }, parent ? `${shortName(id)} (adapter)` : shortName(id));

// A model may be named by its folder: the last two parts tell enough.
const shortName = (id) => String(id).split('/').filter(Boolean).slice(-2).join('/');
