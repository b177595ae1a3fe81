// Which model or adapter to ask: filled from /v1/models, the choice is remembered.

import { getJson } from './api.js';
import { byId, h } from './dom.js';
import { load, store } from './storage.js';

const KEY = 'penstock.model';

export class Models extends EventTarget {
  #select = byId('model');

  constructor() {
    super();
    this.#select.addEventListener('change', () => store(localStorage, KEY, this.#select.value));
  }

  get chosen() {
    return this.#select.value || 'tgi';
  }

  async refresh() {
    const { data } = await getJson('v1/models');
    if (!Array.isArray(data) || !data.length) return;
    const wanted = this.#select.value || load(localStorage, KEY);
    this.#select.replaceChildren(...data.map(option));
    if (data.some(({ id }) => id === wanted)) this.#select.value = wanted;
    this.#select.disabled = false;
    this.#select.title = this.#select.value;
  }
}

const option = ({ id, parent }) => h('option', { value: id }, parent ? `${shortName(id)} (adapter)` : shortName(id));

// A model may be named by its folder: the last two parts tell enough.
const shortName = (id) => String(id).split('/').filter(Boolean).slice(-2).join('/');
