// Reading and writing the browser's storage, which may be switched off or full: reads give null, writes say whether
// they worked. Values are strings, or JSON through the *Json functions.

export function load(area, key) {
  try {
    return area.getItem(key);
  } catch {
    return null;
  }
}

export function store(area, key, value) {
  try {
    area.setItem(key, value);
    return true;
  } catch {
    return false;
  }
}

export function erase(area, key) {
  try {
    area.removeItem(key);
  } catch {
    // Nothing was stored then.
  }
}

export function loadJson(area, key, otherwise) {
  try {
    return JSON.parse(area.getItem(key)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export const storeJson = (area, key, value) => store(area, key, JSON.stringify(value));
