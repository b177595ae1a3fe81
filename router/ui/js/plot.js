// A small moving plot of the last two minutes: lines, or stacked areas. Plain SVG, no library; colours come from the
// style sheet by series number. Missing values leave a gap.

import { h, svg } from './dom.js';

const WINDOW_MS = 120_000;
const WIDTH = 240;
const HEIGHT = 64;

export class Plot {
  #spec;
  #samples = [];
  #parts;

  // {title, unit, series: [names], format, max?, stacked?: areas on one another, sum?: their sum is the figure}
  constructor(spec) {
    this.#spec = spec;
    const several = spec.series.length > 1;
    this.#parts = {
      value: h('b', {}, '–'), note: h('span', { class: 'plot-note' }), top: h('span', { class: 'plot-top', 'aria-hidden': 'true' }),
      paths: spec.series.map((_, i) => ({ area: svg('path', { class: `area series-${i}` }), line: svg('path', { class: `line series-${i}` }) })),
      cursor: svg('line', { class: 'cursor', y1: 0, y2: HEIGHT, visibility: 'hidden' }),
      legend: spec.series.map((name) => ({ name, value: h('b', {}) })),
    };
    const { value, note, top, paths, cursor, legend } = this.#parts;
    this.drawing = svg('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', role: 'img' },
      grid(0.5), grid(HEIGHT / 2), grid(HEIGHT - 0.5), ...paths.flatMap(({ area, line }) => [area, line]).reverse(), cursor);
    this.root = h('figure', { class: spec.stacked ? 'plot stacked' : 'plot' },
      h('figcaption', {}, h('span', { class: 'plot-title' }, spec.title), h('span', { class: 'plot-value' }, value, ` ${spec.unit}`)),
      h('div', { class: 'plot-box' }, top, this.drawing),
      h('div', { class: 'plot-foot' }, several ? legend.map(legendItem) : note));
    this.#listen();
  }

  add(time, values, note) {
    this.#samples.push({ time, values });
    while (this.#samples[0].time < time - WINDOW_MS) this.#samples.shift();
    this.#parts.note.textContent = note;
    this.#draw();
    this.#tell(this.#samples.at(-1));
  }

  #draw() {
    const end = this.#samples.at(-1).time;
    const heights = this.#samples.map(({ values }) => (this.#spec.stacked ? stack(values) : values));
    const top = this.#spec.max ?? niceTop(Math.max(0, ...heights.flat()));
    this.#parts.top.textContent = this.#spec.format(top);
    const x = (time) => WIDTH * (1 - (end - time) / WINDOW_MS);
    const y = (value) => HEIGHT - 1 - ((HEIGHT - 2) * Math.min(value, top)) / top;
    this.#parts.paths.forEach(({ area, line }, i) => {
      const runs = runsOf(this.#samples.map(({ time }, k) => (heights[k][i] == null ? null : [x(time), y(heights[k][i])])));
      line.setAttribute('d', runs.map(lineOf).join(''));
      area.setAttribute('d', runs.map(areaOf).join(''));
    });
  }

  // The figures beside the plot: the newest sample's, or of the one under the pointer.
  #tell({ values }) {
    const { format, series, title, unit, sum } = this.#spec;
    const shown = values.map((value) => (value == null ? '–' : format(value)));
    const total = sum && values[0] != null ? format(values.reduce((all, value) => all + value, 0)) : shown[0];
    this.#parts.value.textContent = total;
    this.#parts.legend.forEach((item, i) => (item.value.textContent = shown[i]));
    this.drawing.setAttribute('aria-label', `${title}, ${unit}, last two minutes. Now: ${series.map((name, i) => `${name} ${shown[i]}`).join(', ')}`);
  }

  #listen() {
    const { cursor } = this.#parts;
    this.drawing.addEventListener('pointermove', ({ offsetX }) => {
      if (!this.#samples.length) return;
      const at = this.#samples.at(-1).time - WINDOW_MS * (1 - offsetX / this.drawing.clientWidth);
      const nearest = this.#samples.reduce((a, b) => (Math.abs(b.time - at) < Math.abs(a.time - at) ? b : a));
      const x = WIDTH * (1 - (this.#samples.at(-1).time - nearest.time) / WINDOW_MS);
      for (const end of ['x1', 'x2']) cursor.setAttribute(end, x);
      cursor.setAttribute('visibility', 'visible');
      this.#tell(nearest);
    });
    this.drawing.addEventListener('pointerleave', () => {
      cursor.setAttribute('visibility', 'hidden');
      if (this.#samples.length) this.#tell(this.#samples.at(-1));
    });
  }
}

const grid = (y) => svg('line', { class: 'grid', x1: 0, x2: WIDTH, y1: y, y2: y });
const legendItem = ({ name, value }, i) => h('span', { class: 'legend' }, h('i', { class: `series-${i}` }), name, ' ', value);

function stack(values) {
  let sum = 0;
  return values.map((value) => (value == null ? null : (sum += value)));
}

// The next of 1, 2, 5, 10, 20, … at or above the value.
export function niceTop(value) {
  if (!(value > 0)) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((step) => step * unit >= value) * unit;
}

// Stretches without gaps.
function runsOf(points) {
  const runs = [[]];
  for (const point of points) {
    if (point) runs.at(-1).push(point);
    else if (runs.at(-1).length) runs.push([]);
  }
  return runs.filter(({ length }) => length > 0);
}

const lineOf = (run) => `M${run.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join('L')}`;
const areaOf = (run) => `${lineOf(run)}L${run.at(-1)[0].toFixed(1)} ${HEIGHT}L${run[0][0].toFixed(1)} ${HEIGHT}Z`;
