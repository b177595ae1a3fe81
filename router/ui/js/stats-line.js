// The line of measurements under an answer. Times are this browser's, token counts are the server's.

import { h } from './dom.js';

const count = (n) => n.toLocaleString('en');

const ENDS = {
  length: ['cut at the token limit', 'The answer reached max tokens'],
  stopped: ['stopped', 'You stopped this answer'],
  content_filter: ['filtered', 'The server filtered this answer'],
};

// While an answer streams: how many tokens there are, and how fast they come.
export function progressLine({ tokens, tokensPerSecond } = {}) {
  const items = tokensPerSecond ? [rateItem(tokensPerSecond), tokensItem(tokens)] : [];
  return h('ul', { class: 'stats', 'aria-label': 'Progress of this answer' }, items);
}

export function statsLine({ stats = {}, finishReason }) {
  const items = [];
  if (stats.firstTokenMs != null) items.push(item(duration(stats.firstTokenMs), 'to first token', 'Time from sending to the first token'));
  if (stats.tokensPerSecond) items.push(rateItem(stats.tokensPerSecond));
  if (stats.tokens != null) items.push(tokensItem(stats.tokens));
  if (stats.promptTokens != null) items.push(item(count(stats.promptTokens), 'in prompt', 'Tokens of the prompt'));
  if (stats.cachedTokens) items.push(item(count(stats.cachedTokens), 'cached', 'Prompt tokens that were already in the cache'));
  if (ENDS[finishReason]) items.push(h('li', { class: 'ended', title: ENDS[finishReason][1] }, ENDS[finishReason][0]));
  return h('ul', { class: 'stats', 'aria-label': 'Measurements of this answer' }, items);
}

const rateItem = (rate) => item(rate.toFixed(1), 'tokens/s', 'Tokens per second after the first');
const tokensItem = (tokens) => item(count(tokens), 'tokens', 'Tokens of this answer');
const item = (value, label, title) => h('li', { title }, h('b', {}, value), ` ${label}`);

export const duration = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`);
