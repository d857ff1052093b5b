// The last hour as the cluster remembers it (GET /v1/history), and lines of it.

import { el } from './dom.js';
import { get } from './api.js';
import { many, time } from './format.js';

const EVERY = 10000;
const SHOWN = 6; // lines that a chart draws

let kept = null;
let asked = 0;

// history asks for it, once in ten seconds.
export async function history(signal) {
  if (kept && Date.now() - asked < EVERY) return kept;
  kept = await get('reading the history', `/v1/history?step=10&limit=${SHOWN}`, { signal });
  asked = Date.now();
  return kept;
}

// line is the points of something, of each of which value gives what is drawn. With rest, what there is where nothing is
// told, the line has all points since when the processes of a role remember, but the last one, which is not over.
export function line(h, points, value, { rest, role } = {}) {
  if (rest === undefined) return points.map((p) => [p.at_ms, value(p)]).filter(([, v]) => v !== undefined);
  const known = Math.max(h.from_ms, Math.min(...h.of.filter((o) => o.role === role).map((o) => o.since_ms)));
  const told = new Map(points.map((p) => [p.at_ms, value(p)]));
  const all = [];
  for (let at = h.from_ms; at < h.to_ms - h.step_ms; at += h.step_ms) {
    if (at + h.step_ms > known) all.push([at, told.get(at) ?? rest]);
  }
  return all;
}

// lacks says what a history has not.
export function lacks(h) {
  const began = h.of.filter((o) => o.since_ms > h.from_ms);
  const oldest = Math.min(...h.of.map((o) => o.since_ms));
  return [(h.unheard || []).map((u) => el('p', { class: 'pre' }, `${u.role} ${u.name}, whose part of the last hour is missing here, gives no answer: ${u.error}`)),
    began.length > 0 && el('p', { class: 'dim' }, `Processes remember the last hour in their memory. ${began.length === h.of.length ? `None of them ran before ${time(oldest)}.`
      : `Those that began within it know no more than since then: ${began.map((o) => `${o.role} ${o.name} (${time(o.since_ms)})`).join(', ')}.`}`),
    h.buckets_omitted > 0 && el('p', { class: 'dim' }, `${many(h.buckets_omitted, 'bucket')} more than are noted.`)];
}
