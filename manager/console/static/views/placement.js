// The location of each slice: slices × indexers, and moves in progress.

import { bar, card, el, empty, put, word } from '../lib/dom.js';
import { get } from '../lib/api.js';
import { bytes, count, date, duration, many, percent } from '../lib/format.js';
import { poll } from '../lib/poll.js';

const PAGE = 50;

function copyWord(c, lost) {
  const text = `replica ${c.replica}`;
  const title = `${count(c.items)} entries, ${bytes(c.bytes)}${c.error ? `: ${c.error}` : ''}`;
  if (c.error) return word(`${text}: cannot be written`, 'bad', title);
  if (lost) return word(`${text}: indexer not active`, 'bad', title);
  if (!c.heard) return word(`${text}: not reported`, 'plain', 'its indexer has not reported it to this leader yet');
  if (c.expected) return word(`${text}: copying ${percent(100 * c.received / c.expected)}`, 'warn', title);
  if (!c.exact) return word(`${text}: not exact yet`, 'warn', title);
  if (c.state === 'allocated') return word(text, 'good', title);
  return word(`${text}: ${c.state}`, 'plain', title);
}

function matrix(list, indexers, moves) {
  const nodes = [...indexers].sort((a, b) => a.id.localeCompare(b.id, 'en', { numeric: true }));
  const rows = list.flatMap((t) => {
    const slices = [...new Set(t.copies.map((c) => c.slice))].sort((a, b) => a - b);
    return [el('tr', { class: 'group' }, el('th', { scope: 'rowgroup', colspan: nodes.length + 1 }, `${t.bucket}/${t.name}`)),
      ...slices.flatMap((s) => {
        const moving = moves.filter((m) => m.index === t.id && m.slice === s);
        return [el('tr', { class: moving.length > 0 && 'moves' }, el('th', { scope: 'row' }, `slice ${s}`), nodes.map((n) => el('td', { class: 'wrap' },
          t.copies.filter((c) => c.slice === s && c.node === n.node).map((c) => el('div', {}, copyWord(c, n.state !== 'active'),
            c.heard && el('span', { class: 'dim' }, `${count(c.items)} entries`)))))),
        ...moving.map((m) => el('tr', { class: 'move' }, el('th', { scope: 'row', 'aria-label': `move of slice ${s}` }),
          el('td', { class: 'wrap', colspan: nodes.length }, el('div', {}, moveWord(m, nodes)))))];
      })];
  });
  return el('div', { class: 'scroll keep' }, el('table', { class: 'matrix', 'aria-label': 'Slices by indexer' },
    el('thead', {}, el('tr', {}, el('th', { scope: 'col' }, 'Slice'), nodes.map((n) => el('th', { scope: 'col' }, n.id, ' ',
      n.state !== 'active' ? word(n.state, 'bad') : n.role !== 'serving' && word(n.role, 'warn'))))),
    el('tbody', {}, rows)));
}

const nameOf = (nodes, node) => (nodes.find((n) => n.node === node) || { id: `node ${node}` }).id;

function moveWord(m, nodes) {
  const from = m.old ? `${nameOf(nodes, m.src.node)} → ` : '→ ';
  return [word(m.state, m.state === 'done' ? 'good' : 'warn', m.reason), ` ${from}${nameOf(nodes, m.dst.node)}, ${bytes(m.bytes_done)} of ${bytes(m.bytes)}`];
}

// rebalances shows the newest five, the newest first.
export function rebalances(list) {
  if (!list.length) return empty('There has been no rebalance yet.', 'After indexers were added or removed, tidemark rebalance run spreads the slices.');
  return list.slice(-5).reverse().map((r) => el('div', { class: 'row' }, el('b', {}, `rebalance ${r.id}`), word(r.phase, r.finished_ms ? 'plain' : 'warn'),
    !r.finished_ms && bar(r.percent, `${percent(r.percent)}${r.remaining_ms === undefined ? '' : `, about ${duration(r.remaining_ms)} left`}`),
    el('span', { class: 'dim' }, `${r.cause}; ${r.done} of ${many(r.steps, 'move')} done${r.given_up ? `, ${r.given_up} given up: ${r.reason}` : ''}; begun ${date(r.started_ms)}${r.finished_ms
      ? `, took ${duration(r.finished_ms - r.started_ms)}` : ''}`)));
}

function load(indexers) {
  const most = Math.max(1, ...indexers.map((i) => i.bytes));
  return indexers.map((i) => el('div', { class: 'row' }, el('b', {}, i.id), bar(100 * i.bytes / most, `${many(i.copies, 'slice')}, ${bytes(i.bytes)}`),
    i.zone && el('span', { class: 'dim' }, `zone ${i.zone}`)));
}

export const placement = {
  path: 'placement', title: 'Placement',
  show({ body, tools, status, query }) {
    let after = '';
    const only = /^\d{1,19}$/.test(query.get('id') || '') ? query.get('id') : null;
    if (only) put(tools, el('span', { class: 'dim' }, `only index ${only}`), el('a', { href: '#/placement' }, 'Show all'));
    put(body, card(null, 'Asking the cluster…'));
    const ask = async (signal) => {
      const from = only ? String(BigInt(only) - 1n) : after;
      const [t, s, r] = await Promise.all([
        get('reading the placement', `/v1/topology?limit=${only ? 1 : PAGE}${from && from !== '0' ? `&after=${encodeURIComponent(from)}` : ''}`, { signal }),
        get('reading the status', '/v1/status', { signal }), get('listing the rebalances', '/v1/rebalances', { signal })]);
      const going = r.rebalances.filter((x) => !x.finished_ms);
      const full = await Promise.all(going.map((x) => get('reading a rebalance', `/v1/rebalances/${x.id}`, { signal })));
      return { t, s, r, moves: full.flatMap((x) => x.moves || []) };
    };
    const loop = poll(status, ask, ({ t, s, r, moves }) => {
      const list = only ? t.indexes.filter((x) => x.id === only) : t.indexes;
      put(body, el('div', { class: 'cols' }, card('Indexers', load(s.indexers)), card('Rebalances', rebalances(r.rebalances))),
        card('Slices by indexer', list.length ? matrix(list, s.indexers, moves)
          : empty('There are no indexes.', el('span', {}, 'Create an index under ', el('a', { href: '#/statements' }, 'Statements'), '.')),
        !only && (t.next || after) && el('div', { class: 'row' }, after && el('button', { type: 'button', onclick: () => { after = ''; loop.now(); } }, 'First page'),
          t.next && el('button', { type: 'button', onclick: () => { after = t.next; loop.now(); } }, `Next ${PAGE} indexes`))));
    }, 3000);
    return loop.end;
  },
};
