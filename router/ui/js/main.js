// Puts the page together, and owns the keys that work everywhere.

import { startAppearance } from './appearance.js';
import { startBanner } from './banner.js';
import { Chat } from './chat.js';
import { Completion } from './completion.js';
import { startComposer } from './composer.js';
import { startConversations } from './conversations.js';
import { byId } from './dom.js';
import { startDrawers } from './drawers.js';
import { History } from './history.js';
import { Models } from './models.js';
import { Settings } from './settings.js';
import { StatsFeed } from './stats-feed.js';
import { startStatus } from './status.js';
import { startViews } from './views.js';

startAppearance(byId('theme'));
startViews();
const drawers = startDrawers();
const history = new History();
const settings = new Settings();
const models = new Models();
const chat = new Chat({ history, settings, models });
const completion = new Completion({ settings, models });
startConversations(history, chat, () => drawers.conversations.closeOver());
startComposer(chat);
chat.resume();

addEventListener('pagehide', () => chat.leave());
addEventListener('pageshow', ({ persisted }) => persisted && location.reload());

const feed = new StatsFeed();
startBanner(feed);
startStatus(feed);
// The server may be another one when it comes back.
const refreshModels = () => models.refresh().catch(() => {});
feed.addEventListener('state', ({ detail: { now } }) => {
  if (now.kind === 'ready') refreshModels();
});
refreshModels();
feed.start();

function askForKey() {
  drawers.settings.open();
  byId('api-key').focus();
}

addEventListener('penstock:ask-for-key', askForKey);
addEventListener('penstock:key-changed', refreshModels);
chat.addEventListener('problem', ({ detail }) => {
  if (detail.kind === 'unauthorized') askForKey();
});

addEventListener('keydown', (event) => {
  if (event.key === 'Escape') {
    chat.stop();
    completion.stop();
  } else if (event.key === '/' && !/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) {
    event.preventDefault();
    (document.body.dataset.view === 'completion' ? byId('prompt') : byId('message')).focus();
  }
});

if (matchMedia('(pointer: fine)').matches && document.body.dataset.view === 'chat') byId('message').focus();
