// Indexes: their states, the progress of builds, their sizes and their use.

import { add, bar, button, card, dl, el, empty, put, table, word } from '../lib/dom.js';
import { get, indexPath, write } from '../lib/api.js';
import { ago, bytes, count, date, duration, many, nanos, percent } from '../lib/format.js';
import { poll, trouble } from '../lib/poll.js';
import { indexState, indexWord, keyspace } from '../lib/states.js';

const PAGE = 200;

// Remaining estimates the remaining time of builds from their progress while this view is open.
class Remaining {
  constructor() { this.seen = new Map(); }

  note(i, now) {
    const s = this.seen.get(i.id);
    if (!s || i.progress < s.last) this.seen.set(i.id, { at: now, from: i.progress, last: i.progress });
    else s.last = i.progress;
  }

  ms(i, now) {
    const s = this.seen.get(i.id);
    if (!s || s.last <= s.from || now - s.at < 1000) return null;
    return (100 - s.last) * (now - s.at) / (s.last - s.from);
  }
}

function progress(i, remaining, now) {
  if (indexState(i).text !== 'building') return '';
  const ms = remaining.ms(i, now);
  return bar(i.progress, `${percent(i.progress)}${ms === null ? '' : `, about ${duration(ms)} left`}`);
}

// merged returns the indexes of a page without those that are to replace another one of the page (a split): the line of
// the other one shows their progress.
function merged(list) {
  const there = new Set(list.map((i) => i.id));
  return list.filter((i) => !i.replaces || !there.has(i.replaces));
}

// split shows the progress of the split of an index.
const split = (i) => i.split && word(`being split ${percent(i.split.progress)}`, 'warn', `into index ${i.split.id} of ${many(i.split.num_partition, 'slice')}`);

// entries marks a figure that may be too low, because not every indexer has reported its copies to a new leader.
const entries = (i) => `${i.items_incomplete ? '≥ ' : ''}${count(i.items)}`;

// withoutEntry describes the documents that have no entry because of an error.
function withoutEntry(faults) {
  return [many(faults.expression + faults.too_long, 'document'),
    faults.incomplete && 'perhaps more: a projector or an indexer does not report this index',
    faults.sample && `one is ${faults.sample.doc_id}: ${faults.sample.error}`].filter(Boolean).join('; ');
}

function details(view, i, stats) {
  const { may } = view;
  const f = stats.get(i.id) || {};
  const message = el('div', { 'aria-live': 'polite' });
  const state = indexState(i);
  const act = (label, does, attrs) => button(label, async (e) => {
    e.target.disabled = true;
    try {
      await does();
      put(message, el('p', { class: 'done' }, `${label}: done.`));
      view.again();
    } catch (err) {
      put(message, await trouble(err));
    } finally {
      e.target.disabled = false;
    }
  }, attrs);
  const again = state.text === 'error' || i.deferred && state.text === 'deferred';
  return card([el('span', {}, `${keyspace(i)}/${i.name} `), indexWord(i)], el('pre', {}, i.definition),
    dl([['id', i.id], ['why', state.why], ['availability since', i.availability && date(i.availability.since_ms)],
      ['slices', `${many(i.num_partition, 'slice')}, ${many(i.num_replica, 'replica')} of each in addition to the first copy`],
      ['entries', entries(i)], ['size', `${bytes(i.disk_bytes)} in ${many((i.copies || []).length, 'copy', 'copies')}`],
      ['garbage', f.frag_percent !== undefined && `${percent(f.frag_percent)} of the files, estimated`],
      ['backlog', f.num_docs_pending !== undefined && `${many(f.num_docs_pending, 'change')} not received yet, ${count(f.num_docs_queued)} not visible yet`],
      ['backlog may be higher', f.pending_unknown],
      ['scans', f.num_requests !== undefined && `${many(f.num_requests, 'scan')}, ${many(f.num_rows_returned, 'row')}, ${many(f.num_scan_errors, 'error')}, mean ${nanos(f.avg_scan_latency || 0)}`],
      ['last error', f.last_scan_error], ['created', date(i.created_ms)],
      ['without an entry', i.faults && withoutEntry(i.faults)],
      ['split', i.split && `index ${i.split.id} of ${many(i.split.num_partition, 'slice')} is ${i.split.state}, ${percent(i.split.progress)}; it takes over the name when it is ready`],
      ['replaces', i.replaces && `index ${i.replaces}, when it is ready`], ['no split yet', i.split_waits], ['no merge yet', i.merge_waits],
      ['requested', i.requested_partitions && `${many(i.requested_partitions, 'slice')}; automatic splits have added more`], ['auto split', i.auto_split === false && 'false'], ['split failed', i.split_failed],
      ['outdated', i.outdated]], true),
    el('div', { class: 'row' }, el('a', { href: `#/scan?id=${i.id}` }, 'Scan'), el('a', { href: `#/placement?id=${i.id}` }, 'Placement'),
      again && may('ddl') && act(state.text === 'error' ? 'Build anew' : 'Build', () => write('the build', 'PATCH', indexPath(i.id), { deferred: false })),
      may('ddl') && button('Drop…', () => drop(view, i), { class: 'danger' }),
      button('Close', () => view.choose(null))), message);
}

// drop asks the user to type the name, because a dropped index has to be built anew.
function drop(view, i) {
  const name = el('input', { type: 'text', id: 'dropname', autocomplete: 'off', spellcheck: 'false' });
  const message = el('div', { 'aria-live': 'polite' });
  const ok = el('button', { type: 'submit', class: 'danger', disabled: true }, 'Drop');
  name.addEventListener('input', () => { ok.disabled = name.value !== i.name; });
  const d = el('dialog', { onclose: () => d.remove() }, el('h2', {}, `Drop ${keyspace(i)}/${i.name}?`),
    el('p', {}, `Its ${many(i.items, 'entry', 'entries')} will be deleted. To have the index again, it must be created and built.`),
    el('form', { onsubmit: async (e) => {
      e.preventDefault();
      ok.disabled = true;
      try {
        await write('dropping the index', 'DELETE', indexPath(i.id), undefined, { more: { 'If-Match': `"${i.modified_cas}"` } });
        d.close();
        view.choose(null);
        view.again();
      } catch (err) {
        put(message, await trouble(err));
        ok.disabled = false;
      }
    } }, el('label', { for: 'dropname' }, 'Type its name to drop it: ', el('b', {}, i.name)), el('div', { class: 'row' }, name, ok,
      button('Keep it', () => d.close())), message));
  add(document.body, d);
  d.showModal();
}

export const indexes = {
  path: 'indexes', title: 'Indexes',
  show({ body, tools, status, query, may }) {
    const remaining = new Remaining();
    const sort = {};
    let last = null;
    let after = query.get('after') || '';
    let chosen = query.get('id');
    const filter = el('input', { type: 'search', placeholder: 'name, bucket or state', 'aria-label': 'Filter', oninput: () => draw() });
    const kept = el('div', {});
    const pane = el('div', {});
    put(tools, filter);
    put(body, kept, pane);
    put(kept, card(null, 'Asking the cluster…'));

    const view = { may, again: () => loop.now(), choose: (id) => { chosen = id; draw(); if (id) pane.scrollIntoView({ block: 'nearest' }); } };
    const ask = async (signal) => {
      const [list, stats] = await Promise.all([
        get('listing the indexes', `/v1/indexes?limit=${PAGE}${after ? `&after=${encodeURIComponent(after)}` : ''}`, { signal }),
        get('reading the figures', '/v1/stats', { signal }).catch(() => null)]);
      return { list, stats: new Map((stats ? stats.indexes : []).map((i) => [i.id, i])) };
    };

    function draw() {
      if (!last) return;
      const { list, stats } = last;
      const now = Date.now();
      const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      const rows = merged(list.indexes).filter((i) => words.every((w) => `${keyspace(i)}/${i.name} ${indexState(i).text}`.toLowerCase().includes(w)));
      const f = (i) => stats.get(i.id) || {};
      put(kept, card(null, table([
        { name: 'Index', sort: (i) => i.name, cell: (i) => button(i.name, () => view.choose(i.id), { class: 'plain wrap', 'data-k': `index ${i.id}` }) },
        { name: 'Bucket', sort: keyspace, cell: (i) => el('span', { class: 'wrap' }, keyspace(i)) },
        { name: 'State', sort: (i) => indexState(i).text, cell: (i) => [indexWord(i), ' ', i.split ? split(i) : progress(i, remaining, now)] },
        { name: 'Entries', num: true, sort: (i) => i.items, cell: entries },
        { name: 'Size', num: true, sort: (i) => i.disk_bytes, cell: (i) => bytes(i.disk_bytes), hint: 'of all copies' },
        { name: 'Backlog', num: true, sort: (i) => f(i).num_docs_pending || 0, cell: (i) => (f(i).num_docs_pending === undefined ? '–' : many(f(i).num_docs_pending + f(i).num_docs_queued, 'change')), hint: 'changes that KV has and that no scan sees yet' },
        { name: 'Scans', num: true, sort: (i) => f(i).num_requests || 0, cell: (i) => count(f(i).num_requests), hint: 'since the start of the indexers’ processes' },
        { name: 'Mean time', num: true, sort: (i) => f(i).avg_scan_latency || 0, cell: (i) => (f(i).num_requests ? nanos(f(i).avg_scan_latency) : '–') },
        { name: 'Last scan', sort: (i) => f(i).last_known_scan_time || 0, cell: (i) => (f(i).last_known_scan_time ? ago(f(i).last_known_scan_time / 1e6) : 'never') },
        { name: 'Notes', cell: (i) => [i.faults && word(`${i.faults.incomplete ? 'at least ' : ''}${many(i.faults.expression + i.faults.too_long, 'document without an entry', 'documents without an entry')}`, 'warn'),
          i.outdated && word('outdated', 'warn', i.outdated), i.reason && el('span', { class: 'wrap' }, i.reason)] },
      ], rows, { state: sort, again: draw, label: 'Indexes', onrow: (i) => view.choose(i.id), none: list.indexes.length
        ? empty('No index of this page matches the filter.', 'Clear the filter to see all.')
        : empty('There are no indexes.', el('span', {}, 'Create one under ', el('a', { href: '#/statements' }, 'Statements'), ': CREATE INDEX by_name ON bucket(name)')) }),
      (list.next || after) && el('div', { class: 'row' }, after && button('First page', () => { after = ''; loop.now(); }),
        list.next && button(`Next ${PAGE}`, () => { after = list.next; loop.now(); }),
        el('span', { class: 'dim' }, `${many(merged(list.indexes).length, 'index', 'indexes')} on this page; the filter searches only this page`))));
      const i = list.indexes.find((x) => x.id === chosen);
      if (i) put(pane, details(view, i, stats));
      else put(pane, chosen && card(null, el('p', {}, `Index ${chosen} is not on this page, or no longer exists.`)));
    }

    const loop = poll(status, ask, (answer) => {
      last = answer;
      for (const i of answer.list.indexes) remaining.note(i, Date.now());
      draw();
    }, 3000);
    return loop.end;
  },
};
