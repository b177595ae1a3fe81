// Speaks to screen readers through one polite live region. Streaming text is told in whole sentences: reading every
// token as it comes would be noise.

import { byId } from './dom.js';

export function announce(text) {
  const line = document.createElement('p');
  line.textContent = text;
  const region = byId('announcer');
  region.append(line);
  while (region.childElementCount > 20) region.firstElementChild.remove();
}

export class SentenceAnnouncer {
  #said = 0;

  // Tells what is complete since the last call; `all` also tells the rest.
  update(text, all = false) {
    const fresh = text.slice(this.#said);
    const ends = [...fresh.matchAll(/[.!?:]\s|\n+/g)];
    const end = all ? fresh.length : ends.length ? ends.at(-1).index + ends.at(-1)[0].length : 0;
    const sentence = fresh.slice(0, end).trim();
    this.#said += end;
    if (sentence) announce(sentence);
  }
}
