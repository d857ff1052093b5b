// How old what scans see is, for each bucket, over the time that this page looks.

import { card, el, empty, put, table, word } from '../lib/dom.js';
import { Series, chart } from '../lib/chart.js';
import { get } from '../lib/api.js';
import { count, duration, many } from '../lib/format.js';
import { poll } from '../lib/poll.js';

const lag = new Series(); // changes that KV has and that no timestamp covers
const number = new Series(); // timestamps a second
const before = new Map();

function note(s, now) {
  for (const b of s.buckets) {
    lag.add(b.name, now, b.lag);
    const was = before.get(b.name);
    if (was && was.number <= b.stability_number && now > was.at) number.add(b.name, now, 1000 * (b.stability_number - was.number) / (now - was.at));
    before.set(b.name, { at: now, number: b.stability_number });
  }
}

export const freshness = {
  path: 'freshness', title: 'Freshness',
  show({ body, status }) {
    put(body, card(null, 'Asking the cluster…'));
    return poll(status, (signal) => get('reading the status', '/v1/status', { signal }), (s) => {
      note(s, Date.now());
      const names = [...s.buckets].sort((a, b) => b.lag - a.lag || a.name.localeCompare(b.name)).map((b) => b.name);
      put(body, !s.buckets.length ? empty('No bucket has an index.', el('span', {}, 'Create one under ', el('a', { href: '#/statements' }, 'Statements'), '.')) : [
        card('Now', table([
          { name: 'Bucket', cell: (b) => el('b', {}, b.name) },
          { name: 'Not visible yet', cell: (b) => (b.lag ? word(many(b.lag, 'change'), 'warn') : word('nothing: scans see all', 'good')) },
          { name: 'Newest stability timestamp', cell: (b) => (b.stability_age_ms === undefined ? `number ${count(b.stability_number)}` : `number ${count(b.stability_number)}, ${duration(b.stability_age_ms)} old`) },
          { name: 'Scans waiting for a newer one', num: true, cell: (b) => count(b.scans_waiting) },
          { name: 'Rollback', cell: (b) => (b.rollback ? word(b.rollback, 'bad') : 'none') },
        ], s.buckets, { label: 'Freshness' }), el('p', { class: 'dim' }, 'A timestamp is made when there is something new: at rest the newest one grows old, and scans see everything all the same.')),
        card('Changes that no scan sees yet', chart('Changes that no scan sees yet', lag, names, (v) => (v === undefined ? '–' : many(Math.round(v), 'change')), 2)),
        card('Stability timestamps made', chart('Stability timestamps made', number, names, (v) => (v === undefined ? '–' : `${v.toFixed(1)}/s`))),
        el('p', { class: 'dim' }, 'The lines begin when this view is first opened, and go back an hour at most; metrics keep them for longer (docs/metrics.md).')]);
    }, 2000).end;
  },
};
