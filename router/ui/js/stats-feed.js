// Asks GET /stats once a second while the page is visible, and tells what came: `sample` for numbers, `state` when
// the server's state changes. Pages stay quiet in the background.

import { getJson } from './api.js';

const EVERY_MS = 1000;
const TIMEOUT_MS = 3000;

// Kinds of state: connecting, ready, asleep, changing, restarting, stopping, lost (as the server says), unreachable, unauthorized, unsupported.
export class StatsFeed extends EventTarget {
  state = { kind: 'connecting', since: Date.now(), reason: '' };
  last = null;
  #timer;

  start() {
    document.addEventListener('visibilitychange', () => document.hidden || this.#ask());
    this.#ask();
  }

  // Asks at once, for instance after the key was changed.
  async #ask() {
    clearTimeout(this.#timer);
    await this.#poll();
    clearTimeout(this.#timer);
    if (!document.hidden) this.#timer = setTimeout(() => this.#ask(), EVERY_MS);
  }

  async #poll() {
    try {
      const stats = await getJson('stats', AbortSignal.timeout(TIMEOUT_MS));
      this.last = { time: Date.now(), stats };
      this.dispatchEvent(new CustomEvent('sample', { detail: this.last }));
      this.#become(KNOWN.includes(stats.status) ? stats.status : 'ready', stats.status_reason ?? '');
    } catch (error) {
      this.dispatchEvent(new CustomEvent('sample', { detail: { time: Date.now(), stats: null } }));
      this.#become(kindOf(error), error.message);
    }
  }

  #become(kind, reason) {
    const before = this.state;
    if (before.kind === kind) return;
    this.state = { kind, since: Date.now(), reason };
    this.dispatchEvent(new CustomEvent('state', { detail: { before, now: this.state } }));
  }
}

const KNOWN = ['ready', 'asleep', 'changing', 'restarting', 'stopping', 'lost'];

function kindOf({ kind, status }) {
  if (kind === 'unauthorized') return 'unauthorized';
  if (status === 404 || status === 405) return 'unsupported';
  return 'unreachable';
}
