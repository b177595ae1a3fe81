// Puts the page together, and owns the keys that work everywhere.

import { startAppearance } from './appearance.js';
import { startBanner } from './banner.js';
import { Chat } from './chat.js';
import { Compare } from './compare.js';
import { Completion } from './completion.js';
import { startComposer } from './composer.js';
import { startConversations } from './conversations.js';
import { byId } from './dom.js';
import { startDrawers } from './drawers.js';
import { History } from './history.js';
import { ModelField, Models } from './models.js';
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
const model = new ModelField(byId('model'), models, 'penstock.model');
const chat = new Chat({ history, settings, model });
const compare = new Compare({ settings, models });
const completion = new Completion({ settings, model });
startConversations(history, chat, () => drawers.conversations.closeOver());
startComposer(byId('chat-composer'), chat, 'penstock.draft');
startComposer(byId('compare-composer'), compare, 'penstock.compare.draft');
chat.resume();
compare.resume();

addEventListener('pagehide', () => {
  chat.leave();
  compare.leave();
});
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
// Adapters come and go while the server runs, mostly by a command in another window.
addEventListener('focus', refreshModels);
feed.start();

function askForKey() {
  drawers.settings.open();
  byId('api-key').focus();
}

addEventListener('penstock:ask-for-key', askForKey);
addEventListener('penstock:key-changed', refreshModels);
for (const asker of [chat, compare]) {
  asker.addEventListener('problem', ({ detail }) => {
    if (detail.kind === 'unauthorized') askForKey();
  });
}

// Where `/` goes, by view.
const FIELD_OF = { completion: 'prompt', compare: 'compare-message' };

addEventListener('keydown', (event) => {
  if (event.key === 'Escape') {
    for (const running of [chat, compare, completion]) running.stop();
  } else if (event.key === '/' && !/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) {
    event.preventDefault();
    byId(FIELD_OF[document.body.dataset.view] ?? 'message').focus();
  }
});

if (matchMedia('(pointer: fine)').matches && document.body.dataset.view === 'chat') byId('message').focus();
