// Lines over time, with their unit. A Series keeps an hour at most.

import { el, svg } from './dom.js';
import { time } from './format.js';

const KEPT_MS = 3600000;
const MOST = 1800;
const NAMES = 64;
const W = 600;
const H = 120;

// Series are figures by name, each with points [ms, value], the oldest first.
export class Series {
  constructor() { this.lines = new Map(); }

  add(name, at, value) {
    const l = this.lines.get(name) || [];
    l.push([at, value]);
    while (l.length > MOST || l.length && l[0][0] < at - KEPT_MS) l.shift();
    this.lines.delete(name);
    this.lines.set(name, l);
    if (this.lines.size > NAMES) this.lines.delete(this.lines.keys().next().value); // the one that was added to least lately
  }
}

// chart draws the lines that are named, at most six, on a scale that ends at least at the value least; written writes a
// value with its unit.
export function chart(label, series, names, written, least = 0) {
  const shown = names.filter((n) => series.lines.has(n)).slice(0, 6);
  const lines = shown.map((n) => series.lines.get(n));
  if (!lines.some((l) => l.length > 1)) return el('p', { class: 'dim' }, 'Gathering: two measurements make a line.');
  const all = lines.flat();
  const from = Math.min(...all.map((p) => p[0]));
  const to = Math.max(...all.map((p) => p[0]), from + 1000);
  const top = Math.max(least, ...all.map((p) => p[1])) || 1;
  const x = (ms) => W * (ms - from) / (to - from);
  const y = (v) => 2 + (H - 4) * (1 - v / top);
  const now = (i) => `${shown[i]}: ${written(lines[i].at(-1)[1])}`;
  return el('div', {}, el('div', { class: 'plot' },
    el('div', { class: 'scale' }, [1, 0.5, 0].map((f) => el('span', {}, written(top * f)))),
    svg('svg', { class: 'chart', viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': `${label}; ${shown.map((n, i) => now(i)).join(', ')}` },
      [0, 0.5, 1].map((f) => svg('line', { class: 'axis', x1: 0, x2: W, y1: y(top * f), y2: y(top * f) })),
      lines.map((l, i) => svg('polyline', { class: `s${i + 1}`, points: l.map(([ms, v]) => `${x(ms).toFixed(1)},${y(v).toFixed(1)}`).join(' ') }))),
    el('span', {}), el('div', { class: 'times' }, el('span', {}, time(from)), el('span', {}, time(to)))),
  el('div', { class: 'legend' }, shown.map((n, i) => el('span', {}, svg('svg', { viewBox: '0 0 16 8', 'aria-hidden': 'true' }, svg('line', { class: `s${i + 1}`, x1: 0, x2: 16, y1: 4, y2: 4 })), now(i))),
    names.length > shown.length && el('span', {}, `${shown.length} of ${names.length} are drawn`)));
}
