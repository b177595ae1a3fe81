// The rows of tables, as GitHub's Markdown has them.

import { strip } from './line.js';

const ALIGNMENTS = { '': null, ':': 'left' };

// The texts of a row's cells. A pipe that belongs to a cell is written `\|`.
export function cellsOf(row) {
  const cells = [''];
  for (const [part] of row.matchAll(/\\\|?|[^\\|]+|\|/g)) {
    if (part === '|') cells.push('');
    else cells[cells.length - 1] += part === '\\|' ? '|' : part;
  }
  if (cells[0] === '') cells.shift();
  if (cells.at(-1) === '') cells.pop();
  return cells.map(strip);
}

// The alignment of each column, if the line is what stands between the head of a table and its body.
export function alignmentsOf(line) {
  if (!line.includes('|') || !/^[-:| \t]+$/.test(line)) return null;
  const cells = cellsOf(strip(line)).map((cell) => /^(:?)-+(:?)$/.exec(cell));
  return cells.length && cells.every(Boolean) ? cells.map(([, left, right]) => alignment(left, right)) : null;
}

function alignment(left, right) {
  if (!right) return ALIGNMENTS[left];
  return left ? 'center' : 'right';
}
