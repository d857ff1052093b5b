// The processes and their states.

import { bar, card, el, empty, put, table, word } from '../lib/dom.js';
import { get } from '../lib/api.js';
import { ago, bytes, count, date, duration, many } from '../lib/format.js';
import { poll } from '../lib/poll.js';
import { processState } from '../lib/states.js';

const or = (text, none = '–') => text || el('span', { class: 'dim' }, none);

function managers(s) {
  return table([
    { name: 'Manager', cell: (m) => [el('b', {}, m.id), m.id === s.node.id && el('span', { class: 'dim' }, ' (this page)')] },
    { name: 'State', cell: (m) => (m.alive ? m.not_ready ? word('not ready', 'warn') : word('answers', 'good') : word('silent', 'bad')) },
    { name: 'Role', cell: (m) => m.role },
    { name: 'Behind', num: true, cell: (m) => many(m.lag || 0, 'entry', 'entries') },
    { name: 'REST', cell: (m) => el('span', { class: 'mono wrap' }, or(m.rest, 'never registered')) },
    { name: 'Raft', cell: (m) => el('span', { class: 'mono' }, m.raft) },
    { name: 'Problem', cell: (m) => or([m.problem, ...(m.not_ready || []).map((r) => r.detail)].filter(Boolean).join('; '), 'none') },
  ], s.managers, { label: 'Managers', none: empty('No manager is known.', 'The cluster has not been formed yet: start as many managers as --bootstrap-expect states.') });
}

function projectors(s) {
  return table([
    { name: 'Projector', cell: (p) => el('b', {}, p.id) },
    { name: 'State', cell: (p) => processState(p.state) },
    { name: 'Streams', num: true, cell: (p) => many(p.streams, 'vbucket') },
    { name: 'Documents evaluated', num: true, cell: (p) => count(p.mutations) },
    { name: 'Deletions', num: true, cell: (p) => count(p.deletions) },
    { name: 'Errors', num: true, cell: (p) => (p.errors ? word(many(p.errors, 'entry', 'entries'), 'warn') : 'none') },
    { name: 'Admin', cell: (p) => el('span', { class: 'mono wrap' }, p.admin) },
    { name: 'KV', cell: (p) => (p.kv ? p.kv.map((k) => el('div', { class: 'wrap' }, word('failing', 'bad'),
      ` ${k.node}, bucket ${k.bucket}, since ${date(k.since_ms)}: ${k.error}`)) : word(p.state === 'active' ? 'answers' : 'unknown', p.state === 'active' ? 'good' : 'plain')) },
    { name: 'Indexers', cell: (p) => (p.unreached ? [p.unreached.map((u) => el('div', { class: 'wrap' },
      word(u.refused ? 'refused' : 'unreachable', 'bad'), ` ${u.indexer}, ${u.port} port ${u.address}, since ${date(u.since_ms)}: ${u.error || 'see its log'}`)),
    p.unreached_omitted && el('div', { class: 'dim' }, `and ${count(p.unreached_omitted)} more`)]
      : word(p.state === 'active' ? 'reachable' : 'unknown', p.state === 'active' ? 'good' : 'plain')) },
  ], s.projectors, { label: 'Projectors', none: empty('No projector has registered.', 'Start one next to each KV node: tidemark projector --help') });
}

function indexers(s, stats) {
  const figures = new Map((stats ? stats.indexers : []).map((i) => [i.id, i]));
  return table([
    { name: 'Indexer', cell: (i) => [el('b', {}, i.id), i.zone && el('span', { class: 'dim' }, ` zone ${i.zone}`)] },
    { name: 'State', cell: (i) => [processState(i.state), i.role !== 'serving' && [' ', word(i.role, 'warn')], i.evicting && [' ', word('being removed', 'warn', i.eviction_waits)]] },
    { name: 'Slices', num: true, cell: (i) => count(i.copies) },
    { name: 'On disk', num: true, cell: (i) => bytes(i.bytes) },
    { name: 'Memory', cell: (i) => memory(figures.get(i.id)) },
    { name: 'Queue', cell: (i) => (i.queue_limit ? bar(100 * i.queue_bytes / i.queue_limit, `${bytes(i.queue_bytes)} of ${bytes(i.queue_limit)}`) : bytes(i.queue_bytes)) },
    { name: 'Up for', num: true, cell: (i) => (figures.get(i.id) && figures.get(i.id).uptime_ms ? duration(figures.get(i.id).uptime_ms) : '–') },
    { name: 'Admin', cell: (i) => el('span', { class: 'mono wrap' }, i.admin) },
    { name: 'Problem', cell: (i) => or(i.health && i.health !== 'ok' ? i.health : i.state === 'active' ? '' : 'it does not report', 'none') },
  ], s.indexers, { label: 'Indexers', none: empty('No indexer has registered.', 'Start one: tidemark indexer --help') });
}

function memory(f) {
  if (!f || !f.memory_quota) return '–';
  return [bar(100 * f.memory_rss / f.memory_quota, `${bytes(f.memory_rss)} of ${bytes(f.memory_quota)}`),
    f.memory_near_quota && [' ', word('near its quota', 'warn')]];
}

function orphans(s) {
  const all = s.indexers.flatMap((i) => (i.orphans || []).map((o) => ({ ...o, indexer: i.id })));
  const more = s.indexers.reduce((n, i) => n + (i.orphan_count || 0), 0) - all.length; // only the oldest of each indexer are listed
  return all.length > 0 && card('Slices that are not in the cluster’s definitions', table([
    { name: 'Indexer', cell: (o) => o.indexer },
    { name: 'Slice', cell: (o) => (o.index === '0' ? 'a damaged folder' : `${o.slice} of index ${o.index}`) },
    { name: 'Bucket', cell: (o) => o.bucket },
    { name: 'Size', num: true, cell: (o) => bytes(o.bytes) },
    { name: 'Since', cell: (o) => ago(o.since_ms) },
    { name: 'Dropped in', cell: (o) => (o.left_ms < 0 ? 'never' : duration(o.left_ms)) },
  ], all, { label: 'Orphans' }), more > 0 && el('p', { class: 'dim' }, `${count(more)} more.`));
}

export const processes = {
  path: 'processes', title: 'Processes',
  show({ body, status }) {
    put(body, card(null, 'Asking the cluster…'));
    const ask = async (signal) => {
      const [s, stats] = await Promise.all([get('reading the status', '/v1/status', { signal }),
        get('reading the figures', '/v1/stats', { signal }).catch(() => null)]); // there are no figures without a leader
      return { s, stats };
    };
    return poll(status, ask, ({ s, stats }) => put(body,
      card(`Managers: ${s.managers.filter((m) => m.alive).length} of ${s.managers.length} answer`, managers(s)),
      card(`Projectors: ${s.projectors.filter((p) => p.state === 'active').length} of ${s.projectors.length} active`, projectors(s)),
      card(`Indexers: ${s.indexers.filter((i) => i.state === 'active').length} of ${s.indexers.length} active`, indexers(s, stats)),
      orphans(s)), 3000).end;
  },
};
