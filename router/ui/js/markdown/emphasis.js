// Which runs of `*`, `_` and `~~` belong together, by the rules of CommonMark. Linear time: an opener that a kind of run
// did not find is not looked for again below the same place.

const PUNCTUATION = /[\p{P}\p{S}]/u;
const LETTER = /[\p{L}\p{N}]/u;

// The run of `length` equal characters at `position`. What is matched is noted in it: `closes` and `opens` hold names of
// elements, the innermost first, and `left` is how many characters stay text.
export function runAt(text, position, length) {
  const character = text[position];
  const [before, after] = [characterBefore(text, position), characterAt(text, position + length)];
  const leftFlanking = flanks(after, before);
  const rightFlanking = flanks(before, after);
  const inWords = character === '_';
  const isUsed = character !== '~' || length === 2;
  return {
    type: 'run', character, length, left: length, closes: [], opens: [],
    canOpen: isUsed && leftFlanking && (!inWords || !rightFlanking || PUNCTUATION.test(before)),
    canClose: isUsed && rightFlanking && (!inWords || !leftFlanking || PUNCTUATION.test(after)),
    afterLetter: LETTER.test(before),
  };
}

const characterAt = (text, position) => (position < text.length ? String.fromCodePoint(text.codePointAt(position)) : ' ');

function characterBefore(text, position) {
  if (position === 0) return ' ';
  const last = text.charCodeAt(position - 1);
  const isLowHalf = last >= 0xdc00 && last <= 0xdfff && position > 1;
  return characterAt(text, position - (isLowHalf ? 2 : 1));
}

const isSpace = (character) => /\s/.test(character);

// Whether a run touches the text on the side of `near`.
const flanks = (near, far) => !isSpace(near) && (!PUNCTUATION.test(near) || isSpace(far) || PUNCTUATION.test(far));

// Matches the runs of one stretch of text. Returns those that could still open and found nothing, outermost first.
export function matchRuns(runs) {
  const openers = [];
  const floors = new Map();
  for (const run of runs) {
    if (run.canClose) closeWith(run, openers, floors);
    if (run.canOpen && run.left > 0) openers.push(run);
  }
  return openers;
}

function closeWith(closer, openers, floors) {
  const kind = `${closer.character}${closer.canOpen}${closer.length % 3}`;
  while (closer.left > 0) {
    const found = lastMatch(closer, openers, floors.get(kind) ?? 0);
    if (found < 0) {
      floors.set(kind, openers.length);
      return;
    }
    const opener = openers[found];
    pair(opener, closer);
    openers.length = opener.left > 0 ? found + 1 : found;
    for (const [each, floor] of floors) floors.set(each, Math.min(floor, openers.length));
  }
}

function lastMatch(closer, openers, floor) {
  for (let i = openers.length - 1; i >= floor; i -= 1) {
    if (openers[i].character === closer.character && fit(openers[i], closer)) return i;
  }
  return -1;
}

// Runs that could both open and close fit by the rule of three, so that `*a**b*` is not cut in the middle.
function fit(opener, closer) {
  const isEither = opener.canClose || closer.canOpen;
  return !isEither || closer.length % 3 === 0 || (opener.length + closer.length) % 3 !== 0;
}

function pair(opener, closer) {
  const used = opener.left >= 2 && closer.left >= 2 ? 2 : 1;
  const element = elementOf(opener.character, used);
  opener.opens.push(element);
  closer.closes.push(element);
  opener.left -= used;
  closer.left -= used;
}

function elementOf(character, used) {
  if (character === '~') return 'del';
  return used === 2 ? 'strong' : 'em';
}

// For a text that is still being written: opens what `run` has left, to be closed by whoever calls. Returns how many
// elements that are.
export function openRest(run) {
  if (run.afterLetter || run.left > 3) return 0;
  const before = run.opens.length;
  for (; run.left > 0; run.left -= Math.min(run.left, 2)) run.opens.push(elementOf(run.character, Math.min(run.left, 2)));
  return run.opens.length - before;
}
