// Tokens shaded by how sure the model was of them. Pointing at a token, or moving to it with the arrow keys, shows the
// alternatives as bars; choosing one goes on from there.

import { h } from './dom.js';

// The tokens of one chunk of /v1/completions: {text, logprob, alternatives: [{text, logprob}]}.
export function tokensOf({ text, logprobs }) {
  if (!logprobs?.tokens?.length) return text ? [{ text, logprob: null, alternatives: [] }] : [];
  return logprobs.tokens.map((token, i) => ({
    text: token,
    logprob: logprobs.token_logprobs?.[i] ?? null,
    alternatives: Object.entries(logprobs.top_logprobs?.[i] ?? {}).map(([text, logprob]) => ({ text, logprob })),
  }));
}

// 0 for a sure token to 5 for a very unlikely one; the classes of style sheet and legend.
export function shadeOf(logprob) {
  if (logprob == null) return 0;
  const steps = [0.9, 0.7, 0.4, 0.15, 0.05];
  const found = steps.findIndex((step) => Math.exp(logprob) >= step);
  return found < 0 ? steps.length : found;
}

export class TokensView {
  #root;
  #choose;
  #prompt = '';
  #tokens = [];
  #body;
  #card;

  constructor(root, choose) {
    this.#root = root;
    this.#choose = choose;
    this.#body = root.querySelector('.tokens');
    this.#card = root.querySelector('.alternatives');
    this.#listen();
  }

  start(prompt) {
    this.#prompt = prompt;
    this.#tokens = [];
    this.#hide();
    this.#body.replaceChildren(h('span', { class: 'prompt' }, prompt));
  }

  add(tokens) {
    const nearEnd = this.#root.scrollHeight - this.#root.scrollTop - this.#root.clientHeight < 48;
    for (const token of tokens) {
      const index = this.#tokens.push(token) - 1;
      this.#body.append(h('span', { class: `token shade-${shadeOf(token.logprob)}`, 'data-index': index, tabindex: index ? -1 : 0 }, token.text));
    }
    if (nearEnd) this.#root.scrollTop = this.#root.scrollHeight;
  }

  #listen() {
    const at = (event) => event.target.closest?.('.token');
    this.#body.addEventListener('pointerover', (event) => at(event) && this.#show(at(event)));
    this.#body.addEventListener('focusin', (event) => at(event) && this.#show(at(event)));
    this.#body.addEventListener('keydown', (event) => this.#onKey(event));
    this.#root.addEventListener('pointerleave', () => this.#root.contains(document.activeElement) || this.#hide());
    this.#root.addEventListener('focusout', ({ relatedTarget }) => this.#root.contains(relatedTarget) || this.#hide());
  }

  #onKey(event) {
    const token = event.target.closest('.token');
    if (!token) return;
    if (event.key === 'Escape') return this.#hide();
    if (event.key === 'ArrowDown') {
      event.preventDefault();
      return this.#card.querySelector('button')?.focus();
    }
    const next = event.key === 'ArrowRight' ? token.nextElementSibling : event.key === 'ArrowLeft' ? token.previousElementSibling : null;
    if (!next?.matches('.token')) return;
    event.preventDefault();
    token.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  #show(element) {
    const index = Number(element.dataset.index);
    const token = this.#tokens[index];
    this.#body.querySelector('.shown')?.classList.remove('shown');
    element.classList.add('shown');
    this.#card.replaceChildren(...alternatives(token, (text) => this.#choose(this.#textBefore(index) + text)));
    this.#card.hidden = false;
    this.#place(element);
  }

  #hide() {
    this.#card.hidden = true;
    this.#body.querySelector('.shown')?.classList.remove('shown');
  }

  #textBefore(index) {
    return this.#prompt + this.#tokens.slice(0, index).map(({ text }) => text).join('');
  }

  // Under the token, or over it where there is no room; inside the box sideways.
  #place(element) {
    const [box, at] = [this.#root.getBoundingClientRect(), element.getClientRects()[0]];
    const card = this.#card;
    const left = Math.max(8, Math.min(at.left - box.left, box.width - card.offsetWidth - 8));
    const below = at.bottom - box.top + this.#root.scrollTop + 4;
    const above = at.top - box.top + this.#root.scrollTop - card.offsetHeight - 4;
    const fits = at.bottom + card.offsetHeight + 8 < innerHeight;
    card.style.left = `${left}px`;
    card.style.top = `${fits || above < 0 ? below : above}px`;
  }
}

function alternatives(token, choose) {
  const known = token.alternatives.some(({ text }) => text === token.text);
  const all = known || token.logprob == null ? token.alternatives : [...token.alternatives, token];
  if (!all.length) return [h('p', { class: 'none' }, 'No probabilities: the server sent none for this token.')];
  const rows = all.toSorted((a, b) => b.logprob - a.logprob).map((one) => row(one, one.text === token.text, choose));
  return [h('ul', { 'aria-label': 'Alternatives' }, rows)];
}

function row({ text, logprob }, isChosen, choose) {
  const share = Math.exp(logprob);
  const meter = h('meter', { min: 0, max: 1, value: share, 'aria-hidden': 'true' });
  const label = isChosen ? 'chosen' : 'go on from here with this token';
  return h('li', { class: isChosen ? 'chosen' : '' },
    h('button', { type: 'button', title: label, 'aria-label': `${visible(text)}, ${percent(share)}, ${label}`, onclick: () => choose(text) },
      h('code', {}, visible(text)), meter, h('span', {}, percent(share))));
}

const percent = (share) => (share >= 0.0005 ? `${(share * 100).toFixed(1)} %` : '< 0.1 %');

// White space that would otherwise not be seen.
const visible = (text) => text.replaceAll('\n', '↵').replaceAll('\t', '⇥').replace(/^ +| +$/g, (spaces) => '␣'.repeat(spaces.length)) || '∅';
