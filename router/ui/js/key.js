// The API key: kept for this browser tab only, unless the user asks to remember it.

import { erase, load, store } from './storage.js';

const KEY = 'penstock.api-key';

export const apiKey = () => load(sessionStorage, KEY) ?? load(localStorage, KEY) ?? '';
export const isRemembered = () => load(localStorage, KEY) !== null;

export function setApiKey(key, remember) {
  erase(sessionStorage, KEY);
  erase(localStorage, KEY);
  if (key) store(remember ? localStorage : sessionStorage, KEY, key);
}
