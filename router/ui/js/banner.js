// Tells, over every view, that the server is gone, that its shards restart, and that they are back: the pill in the
// header always, the banner only while something is wrong and for a moment after.

import { byId, h, icon } from './dom.js';
import { duration } from './stats-line.js';

const BACK_SHOWN_MS = 6000;
const PILL = {
  connecting: 'Connecting…', ready: 'Ready', asleep: 'Asleep', changing: 'Changing', restarting: 'Restarting', stopping: 'Stopping', lost: 'Shards lost', unreachable: 'Unreachable',
  unauthorized: 'Key needed', unsupported: 'No status',
};
const WRONG = {
  asleep: 'The model sleeps. A question wakes it, where the server allows that.',
  changing: 'The model falls asleep, wakes up or gets other weights. Answers go on then.',
  restarting: 'The shards are restarting. Answers go on when they are back.',
  stopping: 'The server is shutting down. It finishes what it has begun and takes nothing new.',
  lost: 'The shards are lost. The server cannot answer until they are started again.',
  unreachable: 'The server cannot be reached. Trying again every second.',
};

export function startBanner(feed) {
  const banner = byId('banner');
  let timer;
  const show = (kind, text, reason = '') => {
    clearTimeout(timer);
    banner.className = `banner ${kind}`;
    banner.replaceChildren(icon(kind === 'ready' ? 'check' : 'alert'), h('span', {}, text), reason && h('small', {}, reason));
    banner.hidden = false;
  };
  feed.addEventListener('state', ({ detail: { before, now } }) => {
    showPill(now.kind);
    if (WRONG[now.kind]) show(now.kind, WRONG[now.kind], ['unreachable', 'stopping'].includes(now.kind) ? '' : now.reason);
    else if (now.kind === 'ready' && WRONG[before.kind]) {
      show('ready', `The server is back after ${duration(now.since - before.since)}.`);
      timer = setTimeout(() => (banner.hidden = true), BACK_SHOWN_MS);
    } else banner.hidden = true;
  });
  feed.addEventListener('sample', ({ detail: { stats } }) => stats && showLoad(stats, feed.state.kind));
  showPill('connecting');
}

function showPill(kind, text = PILL[kind]) {
  byId('pill').className = `pill ${kind}`;
  byId('pill').title = `Server: ${text}`;
  byId('pill-text').textContent = text;
}

function showLoad({ running, waiting }, kind) {
  if (kind !== 'ready' || !running) return kind === 'ready' && showPill('ready');
  showPill('ready', waiting ? `${running} running, ${waiting} waiting` : `${running} running`);
}
