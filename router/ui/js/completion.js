// The completion tab: raw text in, text out, with the probability of every token. The tokens are shown by tokens.js.

import { announce, SentenceAnnouncer } from './announce.js';
import { streamJson } from './api.js';
import { byId, oncePerFrame, setIcon } from './dom.js';
import { problemCard } from './problem.js';
import { completionBody } from './request.js';
import { statsLine } from './stats-line.js';
import { load, store } from './storage.js';
import { tokensOf, TokensView } from './tokens.js';

const PROMPT = 'penstock.prompt';

export class Completion {
  #settings;
  #model;
  #form = byId('completion-form');
  #prompt = byId('prompt');
  #view = new TokensView(byId('completion-output'), (text) => this.#continueWith(text));
  #running = null;

  constructor({ settings, model }) {
    this.#settings = settings;
    this.#model = model;
    this.#prompt.value = load(sessionStorage, PROMPT) ?? this.#prompt.value;
    this.#prompt.addEventListener('input', () => store(sessionStorage, PROMPT, this.#prompt.value));
    this.#prompt.addEventListener('keydown', (event) => {
      if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) this.#form.requestSubmit();
    });
    this.#form.addEventListener('submit', (event) => {
      event.preventDefault();
      if (this.#running) this.stop();
      else this.#run();
    });
    byId('shades').addEventListener('change', ({ target }) => byId('completion-output').classList.toggle('plain', !target.checked));
  }

  stop() {
    this.#running?.abort();
  }

  // Takes the text up to a token, puts another one in its place, and runs on from there.
  #continueWith(text) {
    this.stop();
    this.#prompt.value = text;
    store(sessionStorage, PROMPT, text);
    this.#run();
  }

  async #run() {
    const running = (this.#running = new AbortController());
    const result = new Result();
    this.#show(true);
    this.#view.start(this.#prompt.value);
    byId('completion-problem').replaceChildren();
    byId('completion-stats').replaceChildren();
    announce('Completing');
    await this.#stream(result, running.signal);
    if (this.#running !== running) return;
    this.#running = null;
    this.#show(false);
    byId('completion-stats').replaceChildren(statsLine(result.summary()));
  }

  async #stream(result, signal) {
    const sentences = new SentenceAnnouncer();
    let pending = [];
    const show = oncePerFrame(() => {
      if (!signal.aborted) this.#view.add(pending);
      pending = [];
    });
    try {
      const settings = { ...this.#settings.values(), logprobs: byId('logprobs').value };
      const body = completionBody(await this.#model.chosen(), this.#prompt.value, settings);
      for await (const chunk of streamJson('v1/completions', body, signal)) {
        pending.push(...result.add(chunk));
        show();
        sentences.update(result.text);
      }
      sentences.update(result.text, true);
    } catch (error) {
      this.#failed(error, result);
    }
  }

  #failed(error, result) {
    if (error.name === 'AbortError') {
      result.finishReason = 'stopped';
      return;
    }
    announce(error.message);
    byId('completion-problem').replaceChildren(problemCard(error, () => this.#run()));
  }

  #show(busy) {
    const button = byId('complete');
    setIcon(button, busy ? 'stop' : 'play');
    button.lastElementChild.textContent = busy ? 'Stop' : 'Complete';
    byId('completion-output').setAttribute('aria-busy', String(busy));
  }
}

// A completion as it arrives: text, tokens, measurements.
class Result {
  text = '';
  finishReason = null;
  #started = performance.now();
  #first = 0;
  #last = 0;
  #usage = null;

  // The tokens of a chunk.
  add(chunk) {
    if (chunk.usage) this.#usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (!choice) return [];
    this.finishReason = choice.finish_reason || this.finishReason;
    this.text += choice.text ?? '';
    if (choice.text) {
      this.#last = performance.now();
      this.#first ||= this.#last;
    }
    return tokensOf(choice);
  }

  summary() {
    const ms = this.#last - this.#first;
    const { prompt_tokens, completion_tokens, prompt_tokens_details } = this.#usage ?? {};
    return {
      finishReason: this.finishReason,
      stats: {
        firstTokenMs: this.#first ? this.#first - this.#started : null,
        tokens: completion_tokens, promptTokens: prompt_tokens, cachedTokens: prompt_tokens_details?.cached_tokens,
        tokensPerSecond: completion_tokens > 1 && ms > 0 ? ((completion_tokens - 1) * 1000) / ms : null,
      },
    };
  }
}
