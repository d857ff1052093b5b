// Scans by index and by indexer: rates of the last seconds, and durations and percentiles of the last hour.

import { bar, button, card, el, empty, put, table, word } from '../lib/dom.js';
import { chart } from '../lib/chart.js';
import { get, write } from '../lib/api.js';
import { bytes, count, duration, many, nanos, rate, time } from '../lib/format.js';
import { history, lacks as forgotten, line } from '../lib/history.js';
import { poll, trouble } from '../lib/poll.js';
import { keyspace } from '../lib/states.js';

let before = null;

// per returns the rates between two answers, for each index. A counter that has fallen is that of a restarted process.
function per(now, was) {
  const heard = (s) => s.indexers.filter((i) => i.state !== 'unreachable').map((i) => i.id).sort().join();
  // If an indexer is missing in one of the sums only, their difference is no rate.
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

const scanned = (s) => el('a', { href: `#/indexes?id=${s.index}`, class: 'wrap' }, s.name ? `${keyspace(s)}/${s.name}` : `index ${s.index}`);
const asked = (s) => el('span', { class: 'wrap', title: s.request_id && `request_id ${s.request_id}` }, `${s.op} ${s.bounds}; ${s.consistency}`);

// lacks returns notes about what is missing in a list.
function lacks(list) {
  return [list.omitted > 0 && el('p', { class: 'dim' }, `${many(list.omitted, 'further scan')}: tidemark scan lists more.`),
    (list.unreachable || []).map((u) => el('p', { class: 'pre' }, word('no answer', 'bad'), ` the scans of indexer ${u.indexer} are missing here: ${u.error}`))];
}

// past shows the last hour: percentiles, and lines of the indexes that were scanned most.
function past(h) {
  const gap = 2.5 * h.step_ms;
  const times = [...h.scans.map((l) => ({ name: `scans, ${l.consistency}`, l })), { name: 'DDL', l: h.ddl }];
  const indexes = h.indexes.map((i) => ({ i, name: i.name ? `${keyspace(i)}/${i.name}` : `index ${i.id}` }));
  const rates = (value) => indexes.map(({ i, name }) => ({ name, points: line(h, i.points, (p) => 1000 * value(p) / h.step_ms, { rest: 0, role: 'indexer' }) }));
  return [card('Times in the last hour', table([
    { name: 'What', cell: (x) => x.name },
    { name: 'Ended', num: true, cell: (x) => count(x.l.count) },
    ...[['Mean', 'mean_ms'], ['p50', 'p50_ms'], ['p95', 'p95_ms'], ['p99', 'p99_ms']].map(([name, of]) => (
      { name, num: true, cell: (x) => (x.l.count ? duration(x.l[of]) : '–') })),
  ], times, { label: 'Times in the last hour' }), el('p', { class: 'dim' }, 'A percentile is at most 19 % off. The times of scans include the time in which clients were slow to read.')),
  el('div', { class: 'cols' }, card('99th percentile', chart('99th percentile', times.map((x) => ({ name: x.name, points: line(h, x.l.points, (p) => p.p99_ms) })), duration, { gap })),
    card('Scans', chart('Scans', rates((p) => p.scans), (v) => rate(v, 'scans'))),
    card('Rows', chart('Rows', rates((p) => p.rows), (v) => rate(v, 'rows'))),
    card('Mean time of a scan', chart('Mean time of a scan', indexes.map(({ i, name }) => ({ name, points: line(h, i.points, (p) => p.mean_ms) })), duration, { gap }))),
  h.indexes_omitted > 0 && el('p', { class: 'dim' }, `Lines are drawn for the ${h.indexes.length} indexes that were scanned most, of at least ${count(h.indexes.length + h.indexes_omitted)}.`),
  forgotten(h)];
}

function running(list, cancel) {
  return card('Running scans', table([
    { name: 'Index', cell: scanned },
    { name: 'What', cell: asked },
    { name: 'By', cell: (s) => s.user },
    { name: 'For', num: true, cell: (s) => duration(s.for_ms) },
    { name: 'State', cell: (s) => word(s.cancelled ? `${s.state}, cancelled` : s.state, s.cancelled ? 'bad' : 'plain') },
    { name: 'Rows', num: true, cell: (s) => count(s.rows) },
    { name: 'At', cell: (s) => s.indexer },
    cancel && { name: 'End it', cell: (s) => !s.cancelled && button('Cancel', (e) => cancel(s, e.target), { class: 'danger', 'data-k': `cancel ${s.id}` }) },
  ].filter(Boolean), list.scans.slice(0, 50), { label: 'Running scans', none: el('p', { class: 'dim' }, 'No scan is running.') }),
  list.scans.length > 50 && el('p', { class: 'dim' }, `The 50 longest of ${count(list.scans.length)}.`), lacks(list));
}

function slow(list) {
  return card('Slow scans', table([
    { name: 'Began', cell: (s) => time(s.since_ms) },
    { name: 'Index', cell: scanned },
    { name: 'What', cell: asked },
    { name: 'By', cell: (s) => s.user },
    { name: 'Took', num: true, cell: (s) => duration(s.took_ms) },
    { name: 'Waiting', num: true, hint: 'for a stability timestamp that is new enough', cell: (s) => duration(s.waiting_ms) },
    { name: 'Opening', num: true, hint: 'until the copies had the timestamp and their first rows', cell: (s) => duration(s.opening_ms) },
    { name: 'Reading', num: true, cell: (s) => duration(s.reading_ms) },
    { name: 'Sending', num: true, hint: 'the client or the network accepted no data', cell: (s) => duration(s.sending_ms) },
    { name: 'Rows', num: true, cell: (s) => count(s.rows) },
    { name: 'End', cell: (s) => word(s.code, s.code === 'OK' ? 'good' : 'bad', s.detail) },
  ], list.scans.slice(0, 20), { label: 'Slow scans', none: el('p', { class: 'dim' }, 'No scan took longer than the indexers’ --slow-scan (by default 1 s).') }),
  list.scans.length > 20 && el('p', { class: 'dim' }, `The newest 20 of ${count(list.scans.length)}.`), lacks(list));
}

export const load = {
  path: 'load', title: 'Load',
  show({ body, status, may }) {
    put(body, card(null, 'Asking the cluster…'));
    const message = el('div', { 'aria-live': 'polite' });
    const cancel = may('ddl') && (async (s, pressed) => {
      pressed.disabled = true;
      try {
        await write('cancelling the scan', 'DELETE', `/v1/scans/${encodeURIComponent(s.id)}`);
        put(message, el('p', { class: 'done' }, `Scan ${s.id} is cancelled; its client gets an error.`));
      } catch (err) {
        put(message, await trouble(err));
      }
    });
    before = null; // no rates over the time in which the view was closed
    return poll(status, (signal) => Promise.all([get('reading the figures', '/v1/stats', { signal }),
      get('listing the running scans', '/v1/scans', { signal }), get('listing slow scans', '/v1/slow-scans', { signal }), history(signal)]), ([s, now, were, h]) => {
      const list = per(s, before);
      before = s;
      const name = (x) => `${x.i.bucket}/${x.i.name}`;
      const busy = [...list].sort((a, b) => (b.scans || 0) - (a.scans || 0)).slice(0, 100);
      put(body, !list.length ? empty('There is no index to scan.', el('span', {}, 'Create one under ', el('a', { href: '#/statements' }, 'Statements'), '.')) : [
        card('Indexes, the busiest first', table([
          { name: 'Index', cell: (x) => el('a', { href: `#/indexes?id=${x.i.id}`, class: 'wrap' }, name(x)) },
          { name: 'Scans', num: true, cell: (x) => (x.scans === undefined ? '–' : rate(x.scans, 'scans')) },
          { name: 'Rows', num: true, cell: (x) => (x.rows === undefined ? '–' : rate(x.rows, 'rows')) },
          { name: 'Mean time', num: true, cell: (x) => (x.mean === undefined ? '–' : nanos(x.mean)) },
          { name: 'Errors', cell: (x) => (x.errors ? word(many(x.errors, 'error'), 'bad', x.i.last_scan_error) : 'none') },
          { name: 'Scans in total', num: true, cell: (x) => count(x.i.num_requests) },
          { name: 'Mean of all', num: true, cell: (x) => (x.i.num_requests ? nanos(x.i.avg_scan_latency) : '–') },
        ], busy, { label: 'Load of indexes' }), list.length > busy.length && el('p', { class: 'dim' }, `The 100 busiest of ${count(list.length)}.`),
        el('p', { class: 'dim' }, 'Rates and times are those of the last seconds; a dash means not measured. Totals count from the start of the indexers’ processes.')),
        running(now, cancel), message, past(h), slow(were),
        card('Indexers', table([
          { name: 'Indexer', cell: (i) => el('b', {}, i.id) },
          { name: 'State', cell: (i) => word(i.indexer_state, i.indexer_state === 'active' ? 'good' : 'bad', i.health) },
          { name: 'Scans begun here', num: true, cell: (i) => count(i.num_requests) },
          { name: 'Rows', num: true, cell: (i) => count(i.num_rows_returned) },
          { name: 'Errors', num: true, cell: (i) => count(i.num_scan_errors) },
          { name: 'Mean time', num: true, cell: (i) => (i.num_requests ? nanos(i.avg_scan_latency) : '–') },
          { name: 'Memory', cell: (i) => (i.memory_quota ? bar(100 * i.memory_rss / i.memory_quota, `${bytes(i.memory_rss)} of ${bytes(i.memory_quota)}`) : '–') },
        ], s.indexers, { label: 'Load of indexers', none: empty('No indexer has registered.', 'Start one: tidemark indexer --help') }))]);
    }, 3000).end;
  },
};
