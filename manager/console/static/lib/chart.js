// Line charts over time, with units.

import { el, svg } from './dom.js';
import { time } from './format.js';

const W = 600;
const H = 120;

// chart draws at most six lines {name, points} on a scale that reaches at least to the value least; written formats a
// value with its unit. Points are [ms, value], the oldest first; two that are more than gap ms apart are not connected,
// because nothing is known of the time between them.
export function chart(label, drawn, written, { least = 0, gap = Infinity } = {}) {
  const shown = drawn.filter((d) => d.points.length > 0).slice(0, 6);
  const lines = shown.map((d) => d.points);
  if (!lines.length) return el('p', { class: 'dim' }, 'There are no data of the last hour.');
  const all = lines.flat();
  const from = Math.min(...all.map((p) => p[0]));
  const to = Math.max(...all.map((p) => p[0]), from + 1000);
  const top = Math.max(least, ...all.map((p) => p[1])) || 1;
  const x = (ms) => W * (ms - from) / (to - from);
  const y = (v) => 2 + (H - 4) * (1 - v / top);
  const now = (i) => `${shown[i].name}: ${written(lines[i].at(-1)[1])}`;
  return el('div', {}, el('div', { class: 'plot' },
    el('div', { class: 'scale' }, [1, 0.5, 0].map((f) => el('span', {}, written(top * f)))),
    svg('svg', { class: 'chart', viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': `${label}; ${shown.map((n, i) => now(i)).join(', ')}` },
      [0, 0.5, 1].map((f) => svg('line', { class: 'axis', x1: 0, x2: W, y1: y(top * f), y2: y(top * f) })),
      lines.map((l, i) => pieces(l, gap).map((p) => svg('polyline', { class: `s${i + 1}`, points: p.map(([ms, v]) => `${x(ms).toFixed(1)},${y(v).toFixed(1)}`).join(' ') })))),
    el('span', {}), el('div', { class: 'times' }, el('span', {}, time(from)), el('span', {}, time(to)))),
  el('div', { class: 'legend' }, shown.map((n, i) => el('span', {}, svg('svg', { viewBox: '0 0 16 8', 'aria-hidden': 'true' }, svg('line', { class: `s${i + 1}`, x1: 0, x2: 16, y1: 4, y2: 4 })), now(i))),
    drawn.length > shown.length && el('span', {}, `${shown.length} of ${drawn.length} are drawn`)));
}

// pieces returns the parts of a line between gaps. A single point becomes a short stroke.
function pieces(points, gap) {
  const all = [];
  let before = -Infinity;
  for (const [ms, v] of points) {
    if (ms - before > gap || !all.length) all.push([]);
    all.at(-1).push([ms, v]);
    before = ms;
  }
  return all.map((p) => (p.length > 1 ? p : [p[0], [p[0][0] + 5000, p[0][1]]]));
}
