// The status tab: what the server does now and did in the last two minutes, from the samples of stats-feed.js.

import { byId, h } from './dom.js';
import { Plot } from './plot.js';
import { duration } from './stats-line.js';

const whole = (n) => Math.round(n).toLocaleString('en');
const oneDigit = (n) => (n < 100 ? n.toFixed(1) : whole(n));
const ms = (n) => (n < 1 ? n.toFixed(2) : oneDigit(n));
const percent = (n) => `${oneDigit(n)} %`;

// One plot: `read` takes a sample and the one before it and gives a value for each series.
const PLOTS = [
  { title: 'Generated', unit: 'tokens/s', format: whole, series: ['tokens'],
    read: (now, before) => [perSecond(now, before, 'tokens_generated_total')] },
  { title: 'Requests', unit: 'now', format: whole, series: ['running', 'waiting'],
    read: ({ stats }) => [stats.running, stats.waiting] },
  { title: 'KV cache', unit: 'in use', format: percent, series: ['used', 'prefix cache'], max: 100, stacked: true,
    read: ({ stats }) => [stats.kv_blocks_used, stats.kv_blocks_cached].map((n) => (100 * n) / (stats.kv_blocks_total || 1)) },
  { title: 'Prefix hits', unit: 'tokens/s reused', format: whole, series: ['reused'],
    read: (now, before) => [perSecond(now, before, 'prefix_cache_hit_tokens_total')],
    note: ({ stats }) => hitShare(stats) },
  { title: 'Right drafts', unit: 'tokens/s', format: whole, series: ['right'], isShown: ({ drafts_total: drafts }) => drafts > 0,
    read: (now, before) => [perSecond(now, before, 'accepted_tokens_total')],
    note: ({ stats }) => meanLength(stats) },
  { title: 'Step time', unit: 'ms', format: ms, series: ['upload', 'forward', 'sample', 'download'], stacked: true, sum: true,
    read: ({ stats: { last_step: step } }) => step ? [step.upload_ms, step.forward_ms, step.sample_ms, step.download_ms] : [null, null, null, null] },
  { title: 'Finished', unit: 'requests/s', format: oneDigit, series: ['done', 'failed'],
    read: (now, before) => [finished(now, before, true), finished(now, before, false)] },
];

export function startStatus(feed) {
  const plots = PLOTS.map((spec) => ({ spec, plot: new Plot(spec) }));
  byId('plots').replaceChildren(...plots.map(({ plot }) => plot.root));
  let before = null;
  feed.addEventListener('sample', ({ detail: now }) => {
    for (const { spec, plot } of plots) {
      plot.add(now.time, valuesOf(spec, now, before), noteOf(spec, now));
      if (now.stats) plot.root.hidden = spec.isShown ? !spec.isShown(now.stats) : false;
    }
    if (now.stats) showFacts(now.stats);
    before = now.stats ? now : null;
  });
  feed.addEventListener('state', ({ detail }) => {
    logState(detail);
    byId('status').classList.toggle('stale', detail.now.kind !== 'ready');
    byId('status-line').textContent = EVENTS[detail.now.kind];
  });
}

function valuesOf(spec, now, before) {
  if (!now.stats) return spec.series.map(() => null);
  return spec.read(now, before ?? now);
}

const noteOf = (spec, now) => (now.stats && spec.note ? spec.note(now) : '');

function perSecond(now, before, field) {
  return rate(now, before, now.stats[field], before.stats[field]);
}

// A counter that went down means that the server was restarted.
function rate(now, before, value, earlier) {
  const seconds = (now.time - before.time) / 1000;
  return seconds > 0 && value >= earlier ? (value - earlier) / seconds : seconds > 0 ? 0 : null;
}

function finished(now, before, succeeded) {
  const count = ({ requests_total: outcomes = {} }) =>
    Object.entries(outcomes).reduce((sum, [name, n]) => sum + ((name === 'success') === succeeded ? n : 0), 0);
  return rate(now, before, count(now.stats), count(before.stats));
}

function hitShare({ prefix_cache_hit_tokens_total: hits, tokens_prompt_total: all }) {
  return all ? `${percent((100 * hits) / all)} of all prompt tokens` : 'no prompts yet';
}

// How many of the drafts are right, and how many tokens a step with drafts gives a sequence.
function meanLength({ drafts_total: drafts, drafted_tokens_total: drafted, accepted_tokens_total: right }) {
  return drafts ? `${percent((100 * right) / drafted)} right, ${oneDigit(1 + right / drafts)} tokens a step` : '';
}

function showFacts(stats) {
  const facts = [
    ['Model', stats.model_id], ['Version', stats.version], ['Up for', uptime(stats.uptime_s)],
    ['Tokens generated', whole(stats.tokens_generated_total)], ['Steps', whole(stats.steps_total ?? 0)],
    ['Preemptions', whole(stats.preemptions_total)], ['Shard restarts', whole(stats.restarts)],
  ];
  const outcomes = Object.entries(stats.requests_total ?? {}).map(([name, n]) => [`Requests: ${name}`, whole(n)]);
  byId('facts').replaceChildren(...[...facts, ...replicas(stats), ...outcomes].flatMap(([name, value]) => [h('dt', {}, name), h('dd', {}, value)]));
}

// A line for each replica, where there are several.
function replicas({ replicas: all = [] }) {
  if (all.length < 2) return [];
  const cache = ({ kv_blocks_used: used, kv_blocks_total: total }) => percent((100 * used) / (total || 1));
  const text = (it) => (it.ready ? `${it.running} running, ${it.waiting} waiting, ${cache(it)} of its cache` : 'restarting');
  return all.map((it, number) => [`Replica ${number}`, text(it)]);
}

function uptime(seconds) {
  const [days, hours, minutes] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${Math.floor(seconds)} s`;
}

const EVENTS = {
  ready: 'Ready', asleep: 'The model sleeps', changing: 'The model falls asleep, wakes up or gets other weights', restarting: 'Shards are restarting', stopping: 'The server is shutting down', lost: 'Shards are lost',
  unreachable: 'Server cannot be reached', unauthorized: 'The server asks for an API key', unsupported: 'This server has no /stats',
};

function logState({ before, now }) {
  const log = byId('events');
  const lasted = before.kind === 'connecting' ? '' : ` after ${duration(now.since - before.since)} ${before.kind}`;
  const time = h('time', { datetime: new Date(now.since).toISOString() }, new Date(now.since).toLocaleTimeString());
  log.prepend(h('li', { class: `event ${now.kind}` }, time, h('span', {}, `${EVENTS[now.kind]}${lasted}`),
    now.reason && now.kind !== 'ready' && h('small', {}, now.reason)));
  while (log.childElementCount > 50) log.lastElementChild.remove();
}
