// Scans by index and by indexer: rates and mean times, over the time that this page looks.

import { bar, card, el, empty, put, table, word } from '../lib/dom.js';
import { Series, chart } from '../lib/chart.js';
import { get } from '../lib/api.js';
import { bytes, count, many, nanos, rate } from '../lib/format.js';
import { poll } from '../lib/poll.js';

const scans = new Series();
const rows = new Series();
const mean = new Series();
let before = null;

// per is what became of counters between two answers, for each index. Counters that fell are of a process that began anew.
function per(now, was) {
  const heard = (s) => s.indexers.filter((i) => i.state !== 'unreachable').map((i) => i.id).sort().join();
  // Sums in which an indexer is missing, or is back, say nothing about the time between.
  const seconds = was && heard(was) === heard(now) ? (now.at_ms - was.at_ms) / 1000 : 0;
  const old = new Map(was ? was.indexes.map((i) => [i.id, i]) : []);
  return now.indexes.map((i) => {
    const o = old.get(i.id);
    if (!o || seconds <= 0 || i.num_requests < o.num_requests || i.total_scan_duration < o.total_scan_duration) return { i };
    const n = i.num_requests - o.num_requests;
    return { i, scans: n / seconds, rows: (i.num_rows_returned - o.num_rows_returned) / seconds, errors: i.num_scan_errors - o.num_scan_errors,
      mean: n ? (i.total_scan_duration - o.total_scan_duration) / n : undefined };
  });
}

export const load = {
  path: 'load', title: 'Load',
  show({ body, status }) {
    put(body, card(null, 'Asking the cluster…'));
    before = null; // a gap is no rate
    return poll(status, (signal) => get('reading the figures', '/v1/stats', { signal }), (s) => {
      const list = per(s, before);
      before = s;
      const name = (x) => `${x.i.bucket}/${x.i.name}`;
      const busy = [...list].sort((a, b) => (b.scans || 0) - (a.scans || 0)).slice(0, 100);
      for (const x of busy.slice(0, 12)) {
        if (x.scans === undefined) continue;
        scans.add(name(x), s.at_ms, x.scans);
        rows.add(name(x), s.at_ms, x.rows);
        if (x.mean !== undefined) mean.add(name(x), s.at_ms, x.mean);
      }
      const names = busy.map(name);
      put(body, !list.length ? empty('There is no index that could be scanned.', el('span', {}, 'Create one under ', el('a', { href: '#/statements' }, 'Statements'), '.')) : [
        card('Indexes, the busiest first', table([
          { name: 'Index', cell: (x) => el('a', { href: `#/indexes?id=${x.i.id}`, class: 'wrap' }, name(x)) },
          { name: 'Scans', num: true, cell: (x) => (x.scans === undefined ? '–' : rate(x.scans, 'scans')) },
          { name: 'Rows', num: true, cell: (x) => (x.rows === undefined ? '–' : rate(x.rows, 'rows')) },
          { name: 'Mean time', num: true, cell: (x) => (x.mean === undefined ? '–' : nanos(x.mean)) },
          { name: 'Errors', cell: (x) => (x.errors ? word(many(x.errors, 'error'), 'bad', x.i.last_scan_error) : 'none') },
          { name: 'Scans altogether', num: true, cell: (x) => count(x.i.num_requests) },
          { name: 'Mean of all', num: true, cell: (x) => (x.i.num_requests ? nanos(x.i.avg_scan_latency) : '–') },
        ], busy, { label: 'Load of indexes' }), list.length > busy.length && el('p', { class: 'dim' }, `The 100 busiest of ${count(list.length)}.`),
        el('p', { class: 'dim' }, 'Rates and times are of the last seconds; a dash is what was not measured. "Altogether" is since the indexers’ processes began.')),
        el('div', { class: 'cols' }, card('Scans', chart('Scans', scans, names, (v) => rate(v, 'scans'))), card('Rows', chart('Rows', rows, names, (v) => rate(v, 'rows'))),
          card('Mean time of a scan', chart('Mean time of a scan', mean, names, nanos))),
        card('Indexers', table([
          { name: 'Indexer', cell: (i) => el('b', {}, i.id) },
          { name: 'State', cell: (i) => word(i.indexer_state, i.indexer_state === 'active' ? 'good' : 'bad', i.health) },
          { name: 'Scans begun here', num: true, cell: (i) => count(i.num_requests) },
          { name: 'Rows', num: true, cell: (i) => count(i.num_rows_returned) },
          { name: 'Errors', num: true, cell: (i) => count(i.num_scan_errors) },
          { name: 'Mean time', num: true, cell: (i) => (i.num_requests ? nanos(i.avg_scan_latency) : '–') },
          { name: 'Memory', cell: (i) => (i.memory_quota ? bar(100 * i.memory_rss / i.memory_quota, `${bytes(i.memory_rss)} of ${bytes(i.memory_quota)}`) : '–') },
        ], s.indexers, { label: 'Load of indexers', none: empty('No indexer has registered.', 'Start one: tidemark indexer --help') })),
        el('p', { class: 'dim' }, 'The lines begin when this view is first opened, and go back an hour at most; indexers’ metrics have histograms (docs/metrics.md).')]);
    }, 3000).end;
  },
};
