// The number of changes that scans do not see yet, for each bucket, over the last hour.

import { card, el, empty, put, table, word } from '../lib/dom.js';
import { chart } from '../lib/chart.js';
import { get } from '../lib/api.js';
import { count, duration, many } from '../lib/format.js';
import { history, lacks, line } from '../lib/history.js';
import { poll } from '../lib/poll.js';

// lines returns a line for each bucket of names, in that order.
function lines(h, names, value) {
  const reported = new Map(h.buckets.map((b) => [b.name, b]));
  return names.map((name) => ({ name, points: reported.has(name) ? line(h, reported.get(name).points, value) : [] }));
}

export const freshness = {
  path: 'freshness', title: 'Freshness',
  show({ body, status }) {
    put(body, card(null, 'Asking the cluster…'));
    return poll(status, (signal) => Promise.all([get('reading the status', '/v1/status', { signal }), history(signal)]), ([s, h]) => {
      const gap = 2.5 * h.step_ms;
      const names = [...s.buckets].sort((a, b) => b.lag - a.lag || a.name.localeCompare(b.name)).map((b) => b.name);
      put(body, !s.buckets.length ? empty('No bucket has an index.', el('span', {}, 'Create one under ', el('a', { href: '#/statements' }, 'Statements'), '.')) : [
        card('Now', table([
          { name: 'Bucket', cell: (b) => el('b', {}, b.name) },
          { name: 'Not visible yet', cell: (b) => (b.lag ? word(many(b.lag, 'change'), 'warn') : word('none: scans see everything', 'good')) },
          { name: 'Newest stability timestamp', cell: (b) => (b.stability_age_ms === undefined ? `number ${count(b.stability_number)}` : `number ${count(b.stability_number)}, ${duration(b.stability_age_ms)} old`) },
          { name: 'Scans waiting for a newer one', num: true, cell: (b) => count(b.scans_waiting) },
          { name: 'Rollback', cell: (b) => (b.rollback ? word(b.rollback, 'bad') : 'none') },
        ], s.buckets, { label: 'Freshness' }), el('p', { class: 'dim' }, 'A stability timestamp is made only when there are changes: without changes the newest one grows old, and scans still see everything.')),
        card('Changes that no scan sees yet', chart('Changes that no scan sees yet', lines(h, names, (p) => p.lag), (v) => (v === undefined ? '–' : many(Math.round(v), 'change')), { least: 2, gap })),
        card('Stability timestamps made', chart('Stability timestamps made', lines(h, names, (p) => (p.timestamps === undefined ? undefined : 1000 * p.timestamps / h.step_ms)), (v) => (v === undefined ? '–' : `${v.toFixed(1)}/s`), { gap })),
        card('Scans that waited for a newer timestamp', chart('Scans that waited for a newer timestamp', lines(h, names, (p) => p.scans_waiting), (v) => many(Math.round(v), 'scan'), { least: 2, gap })),
        lacks(h), el('p', { class: 'dim' }, 'For each ten seconds the worst value is drawn, of those that the leader at that time recorded once a second.')]);
    }, 2000).end;
  },
};
