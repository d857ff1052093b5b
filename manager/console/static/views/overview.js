// The health of the cluster, and what to do.

import { card, dl, el, empty, put, table, word } from '../lib/dom.js';
import { get } from '../lib/api.js';
import { count, duration, many } from '../lib/format.js';
import { poll, trouble } from '../lib/poll.js';
import { verdictKind } from '../lib/states.js';
import { rebalances } from './placement.js';

// todo returns the problems in a status, in the words of the API, each with the next step.
function todo(s) {
  const list = s.reasons.map((r) => ({ what: r, next: next(r) }));
  const failed = s.indexes && s.indexes.failed;
  if (failed) {
    list.push({ what: `${many(failed, 'index is', 'indexes are')} in state error`,
      next: ['see the reasons under', '#/indexes', 'then build them anew or drop them'] });
  }
  for (const i of s.indexers) {
    if (i.orphan_count) {
      list.push({ what: `indexer ${i.id} has ${many(i.orphan_count, 'slice')} that are not in the cluster’s definitions`,
        next: ['see which under', '#/processes', 'they are dropped automatically after --orphan-grace'] });
    }
    if (i.differing_copies) {
      list.push({ what: `${many(i.differing_copies, 'slice')} of indexer ${i.id} differ from the KV data`,
        next: ['list them: tidemark watch --kinds difference'] });
    }
  }
  if (s.restoring) list.push({ what: 'a backup is being restored: writes are refused until it is done', next: ['wait'] });
  return list;
}

// next returns the view with more about a reason. It matches the words of the verdict (manager/api/verdict.go).
function next(reason) {
  if (/^manager .* does not answer|has never registered/.test(reason)) return ['start it again, or see', '#/processes', 'if it is lost permanently: tidemark cluster remove'];
  if (/^(manager|indexer|projector)|^no (projector|indexer)/.test(reason)) return ['see', '#/processes'];
  if (/not streamed|rolled back/.test(reason)) return ['the cluster repairs this; follow it under', '#/timeline'];
  if (/^index|indexes/.test(reason)) return ['see which slices under', '#/placement'];
  return [];
}

const names = { '#/processes': 'Processes', '#/indexes': 'Indexes', '#/placement': 'Placement', '#/timeline': 'What happened' };

function step(parts) {
  return parts.map((p) => [names[p] ? el('a', { href: p }, names[p]) : p, ' ']);
}

function draw(body, s, moves) {
  const list = todo(s);
  const good = s.verdict === 'ready';
  const x = s.indexes;
  const led = s.coordinator === 'active'; // only a leader that has taken over knows components and streams
  const active = (l) => (led ? `${l.filter((p) => p.state === 'active').length} of ${l.length} active` : `${l.length}, state unknown`);
  put(body, el('div', { class: 'cols' },
    card(null, el('div', { class: `verdict ${verdictKind(s.verdict)}`, id: 'verdict' }, s.verdict),
      el('p', {}, good ? 'Everything answers, all vbuckets are streamed, and every ready index can be scanned whole.'
        : s.verdict === 'degraded' ? 'The cluster serves, but something is missing.' : 'The cluster cannot serve everything.'),
      dl([['cluster', el('span', { class: 'mono' }, s.cluster_id)], ['leader', s.leader.id || 'none known'],
        ['asked', `${s.node.id}, ${s.node.role}`], ['version', s.version], ['changes', `cas ${count(s.cas)}, term ${count(s.term)}`]])),
    card('Processes', dl([
      ['managers', `${s.managers.filter((m) => m.alive).length} of ${s.managers.length} answer`],
      ['projectors', active(s.projectors)],
      ['indexers', active(s.indexers)]]), el('a', { href: '#/processes' }, 'All processes')),
    card('Indexes', x ? dl([['ready', `${x.available + x.degraded} with every slice`],
      ['degraded', x.degraded ? word(`${x.degraded} with fewer copies`, 'warn') : 'none'],
      ['unavailable', x.unavailable ? word(`${x.unavailable} with a slice missing`, 'bad') : 'none'],
      ['error', x.failed ? word(String(x.failed), 'bad') : 'none'],
      ['not ready yet', x.others ? `${x.others} building, deferred or dropping` : 'none']])
      : el('p', { class: 'dim' }, s.coordinator ? 'The new leader is taking over: it counts indexes once it has heard of their slices.'
        : 'Only the leader counts indexes, and it does not answer.'), el('a', { href: '#/indexes' }, 'All indexes'))),
  card('What to do', list.length ? el('ol', { class: 'todo' }, list.map((t) => el('li', {}, el('span', { class: 'wrap' }, t.what),
    t.next.length > 0 && el('span', { class: 'dim' }, ' — ', step(t.next))))) : el('p', {}, 'Nothing: everything is well.')),
  moves,
  card('Buckets', table([
    { name: 'Bucket', cell: (b) => el('b', {}, b.name) },
    { name: 'Streams', cell: (b) => (!led ? word('unknown', 'plain') : !b.wanted ? word('not needed', 'plain') : b.streams_missing
      ? word(`${b.streams_missing} of ${b.vbuckets} missing`, 'bad') : word(`all ${b.vbuckets} vbuckets`, 'good')) },
    { name: 'Newest stability timestamp', cell: (b) => `number ${count(b.stability_number)}${b.stability_age_ms === undefined ? ''
      : `, made ${duration(b.stability_age_ms)} ago`}` },
    { name: 'Not in it yet', num: true, cell: (b) => (led ? many(b.lag, 'change') : '–') },
    { name: 'Scans waiting', num: true, cell: (b) => (led ? count(b.scans_waiting) : '–') },
    { name: 'Rollback', cell: (b) => (b.rollback ? word(b.rollback, 'bad') : led ? 'none' : '–') },
  ], s.buckets, { label: 'Buckets', none: empty('No bucket has an index.', el('span', {}, 'Create one under ', el('a', { href: '#/statements' }, 'Statements'), '.')) })));
}

export const overview = {
  path: '', title: 'Overview',
  show({ body, status }) {
    put(body, card(null, 'Asking the cluster…'));
    const moves = el('div', { hidden: true });
    const left = new AbortController();
    let asking = false;
    const showMoves = (what) => {
      moves.hidden = !what;
      put(moves, what);
    };
    // Only a leader has the moves, so that the status is shown without waiting for them.
    const askMoves = async () => {
      if (asking) return;
      asking = true;
      try {
        const r = await get('listing the rebalances', '/v1/rebalances', { signal: left.signal });
        const moving = r.rebalances.filter((x) => !x.finished_ms);
        showMoves(moving.length > 0 && card('Rebalance in progress', rebalances(moving), el('a', { href: '#/placement' }, 'All moves')));
      } catch (err) {
        if (err.code !== 'CANCELLED') showMoves(await trouble(err));
      } finally {
        asking = false;
      }
    };
    const loop = poll(status, (signal) => get('reading the status', '/v1/status', { signal }), (s) => {
      draw(body, s, moves);
      if (s.leader.id) askMoves();
      else showMoves(null);
    }, 3000);
    return () => {
      loop.end();
      left.abort('left');
    };
  },
};
