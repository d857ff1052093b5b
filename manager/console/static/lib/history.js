// The history of the last hour (GET /v1/history), and lines of it for charts.

import { el } from './dom.js';
import { get } from './api.js';
import { many, time } from './format.js';

const EVERY = 10000;
const SHOWN = 6; // maximum number of lines in a chart

let kept = null;
let asked = 0;

// history returns the history; it requests it at most once in ten seconds.
export async function history(signal) {
  if (kept && Date.now() - asked < EVERY) return kept;
  kept = await get('reading the history', `/v1/history?step=10&limit=${SHOWN}`, { signal });
  asked = Date.now();
  return kept;
}

// line returns the points of a chart's line; value returns the value of a point of the history. With rest, the value
// where the history has no point, the line has all points since the processes of the role keep a history, except the
// last one, which is not over.
export function line(h, points, value, { rest, role } = {}) {
  if (rest === undefined) return points.map((p) => [p.at_ms, value(p)]).filter(([, v]) => v !== undefined);
  const known = Math.max(h.from_ms, Math.min(...h.of.filter((o) => o.role === role).map((o) => o.since_ms)));
  const reported = new Map(points.map((p) => [p.at_ms, value(p)]));
  const all = [];
  for (let at = h.from_ms; at < h.to_ms - h.step_ms; at += h.step_ms) {
    if (at + h.step_ms > known) all.push([at, reported.get(at) ?? rest]);
  }
  return all;
}

// lacks returns notes about what is missing in a history.
export function lacks(h) {
  const began = h.of.filter((o) => o.since_ms > h.from_ms);
  const oldest = Math.min(...h.of.map((o) => o.since_ms));
  return [(h.unreachable || []).map((u) => el('p', { class: 'pre' }, `The part of ${u.role} ${u.name} is missing here, because it does not answer: ${u.error}`)),
    began.length > 0 && el('p', { class: 'dim' }, `Processes keep the history of the last hour in memory. ${began.length === h.of.length ? `None of them ran before ${time(oldest)}.`
      : `These have started since, and know nothing earlier: ${began.map((o) => `${o.role} ${o.name} (${time(o.since_ms)})`).join(', ')}.`}`),
    h.buckets_omitted > 0 && el('p', { class: 'dim' }, `${many(h.buckets_omitted, 'further bucket')} not recorded.`)];
}
