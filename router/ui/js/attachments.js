// The files of the message that is being typed: chosen with the button, dropped on the view, or pasted; shown above the
// field, each with a button that removes it.

import { announce } from './announce.js';
import { h, iconButton } from './dom.js';
import { readFiles } from './files.js';
import { erase, loadJson, storeJson } from './storage.js';
import { toast } from './toast.js';

// Emits `change`.
export class Attachments extends EventTarget {
  #key;
  #list;
  #files;

  // `area` holds the list, the button and the field; files may be dropped anywhere on its view. `key` stores the draft.
  constructor(area, key) {
    super();
    this.#key = key;
    this.#list = area.querySelector('.attachments');
    this.#files = loadJson(sessionStorage, key, []);
    const input = area.querySelector('input[type=file]');
    area.querySelector('.attach').addEventListener('click', () => input.click());
    input.addEventListener('change', async () => {
      await this.#add([...input.files]);
      input.value = '';
    });
    area.addEventListener('paste', (event) => this.#onPaste(event));
    acceptDrops(area.closest('.view'), (files) => this.#add(files));
    this.#show();
  }

  get count() {
    return this.#files.length;
  }

  // The files, which are then no longer part of the draft.
  take() {
    const files = this.#files;
    this.#set([]);
    return files;
  }

  async #add(list) {
    const { files, problems } = await readFiles(list, this.#files);
    this.#set(files);
    if (problems.length) toast(problems.join(' '));
    announce(`${files.length} ${files.length === 1 ? 'file' : 'files'} in this message`);
  }

  #onPaste(event) {
    const { files } = event.clipboardData;
    if (!files.length) return;
    event.preventDefault();
    this.#add([...files]);
  }

  #set(files) {
    this.#files = files;
    if (files.length) storeJson(sessionStorage, this.#key, files);
    else erase(sessionStorage, this.#key);
    this.#show();
    this.dispatchEvent(new Event('change'));
  }

  #show() {
    this.#list.hidden = !this.#files.length;
    this.#list.replaceChildren(...this.#files.map((file) =>
      h('li', {}, file.name, iconButton('close', `Remove ${file.name}`, () => this.#set(this.#files.filter((other) => other !== file)), 'small'))));
  }
}

const hasFiles = (event) => event.dataTransfer.types.includes('Files');

function acceptDrops(view, add) {
  const mark = (on) => view.classList.toggle('dropping', on);
  view.addEventListener('dragover', (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    mark(true);
  });
  view.addEventListener('dragleave', (event) => view.contains(event.relatedTarget) || mark(false));
  view.addEventListener('drop', (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    mark(false);
    add([...event.dataTransfer.files]);
  });
}
