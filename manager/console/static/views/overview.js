// Is all well, and what is to be done.

import { card, dl, el, empty, put, table, word } from '../lib/dom.js';
import { get } from '../lib/api.js';
import { count, duration, many } from '../lib/format.js';
import { poll, trouble } from '../lib/poll.js';
import { verdictKind } from '../lib/states.js';
import { rebalances } from './placement.js';

// todo is what follows from a status: what is wrong, in the cluster's words, and the next step.
function todo(s) {
  const list = s.reasons.map((r) => ({ what: r, next: next(r) }));
  const failed = s.indexes && s.indexes.failed;
  if (failed) {
    list.push({ what: `${many(failed, 'index is', 'indexes are')} in state error`,
      next: ['see why', '#/indexes', 'then build anew or drop'] });
  }
  for (const i of s.indexers) {
    if (i.orphan_count) {
      list.push({ what: `indexer ${i.id} has ${many(i.orphan_count, 'slice')} that the cluster does not know`,
        next: ['see which', '#/processes', 'they go by themselves when their grace is over'] });
    }
    if (i.differing_copies) {
      list.push({ what: `${many(i.differing_copies, 'slice')} of indexer ${i.id} differ from the KV data`,
        next: ['see which by tidemark watch --kinds difference'] });
    }
  }
  if (s.restoring) list.push({ what: 'a backup is being restored: writes are refused until it is done', next: ['wait'] });
  return list;
}

// next leads to the view with more about a reason. The words are those of the verdict (manager/api/verdict.go).
function next(reason) {
  if (/^manager .* does not answer|has never registered/.test(reason)) return ['start it again, or see it under', '#/processes', 'if it is gone for good: tidemark cluster remove'];
  if (/^(manager|indexer|projector)|^no (projector|indexer)/.test(reason)) return ['see it under', '#/processes'];
  if (/not streamed|rolled back/.test(reason)) return ['it mends itself; see how far it is:', '#/timeline'];
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
  const active = (l) => l.filter((p) => p.state === 'active').length;
  put(body, el('div', { class: 'cols' },
    card(null, el('div', { class: `verdict ${verdictKind(s.verdict)}`, id: 'verdict' }, s.verdict),
      el('p', {}, good ? 'Everything answers, all vbuckets are streamed, and every ready index can be scanned whole.'
        : s.verdict === 'degraded' ? 'It serves, but something is missing.' : 'It cannot serve all.'),
      dl([['cluster', el('span', { class: 'mono' }, s.cluster_id)], ['leader', s.leader.id || 'none is known'],
        ['asked', `${s.node.id}, ${s.node.role}`], ['version', s.version], ['changes', `cas ${count(s.cas)}, term ${count(s.term)}`]])),
    card('Processes', dl([
      ['managers', `${s.managers.filter((m) => m.alive).length} of ${s.managers.length} answer`],
      ['projectors', `${active(s.projectors)} of ${s.projectors.length} active`],
      ['indexers', `${active(s.indexers)} of ${s.indexers.length} active`]]), el('a', { href: '#/processes' }, 'All processes')),
    card('Indexes', x ? dl([['ready', `${x.available + x.degraded} with every slice`],
      ['degraded', x.degraded ? word(`${x.degraded} with fewer copies`, 'warn') : 'none'],
      ['unavailable', x.unavailable ? word(`${x.unavailable} with a slice missing`, 'bad') : 'none'],
      ['error', x.failed ? word(String(x.failed), 'bad') : 'none'],
      ['not ready yet', x.others ? `${x.others} building, deferred or going` : 'none']])
      : el('p', { class: 'dim' }, 'Only the leader counts them, and it does not answer.'), el('a', { href: '#/indexes' }, 'All indexes'))),
  card('What to do', list.length ? el('ol', { class: 'todo' }, list.map((t) => el('li', {}, el('span', { class: 'wrap' }, t.what),
    t.next.length > 0 && el('span', { class: 'dim' }, ' — ', step(t.next))))) : el('p', {}, 'Nothing: all is well.')),
  moves,
  card('Buckets', table([
    { name: 'Bucket', cell: (b) => el('b', {}, b.name) },
    { name: 'Streams', cell: (b) => (!b.wanted ? word('not needed', 'plain') : b.streams_missing
      ? word(`${b.streams_missing} of ${b.vbuckets} missing`, 'bad') : word(`all ${b.vbuckets} vbuckets`, 'good')) },
    { name: 'Newest stability timestamp', cell: (b) => `number ${count(b.stability_number)}${b.stability_age_ms === undefined ? ''
      : `, made ${duration(b.stability_age_ms)} ago`}` },
    { name: 'Not in it yet', num: true, cell: (b) => many(b.lag, 'change') },
    { name: 'Scans waiting', num: true, cell: (b) => count(b.scans_waiting) },
    { name: 'Rollback', cell: (b) => (b.rollback ? word(b.rollback, 'bad') : 'none') },
  ], s.buckets, { label: 'Buckets', none: empty('No bucket has an index.', el('span', {}, 'Create one under ', el('a', { href: '#/statements' }, 'Statements'), '.')) })));
}

export const overview = {
  path: '', title: 'Overview',
  show({ body, status }) {
    put(body, card(null, 'Asking the cluster…'));
    const moves = el('div', { hidden: true });
    const left = new AbortController();
    let asking = false;
    const tell = (what) => {
      moves.hidden = !what;
      put(moves, what);
    };
    // Only a leader knows them: who has the status does not wait for them.
    const askMoves = async () => {
      if (asking) return;
      asking = true;
      try {
        const r = await get('listing the rebalances', '/v1/rebalances', { signal: left.signal });
        const moving = r.rebalances.filter((x) => !x.finished_ms);
        tell(moving.length > 0 && card('Slices move', rebalances(moving), el('a', { href: '#/placement' }, 'Which, and where to')));
      } catch (err) {
        if (err.code !== 'CANCELLED') tell(await trouble(err));
      } finally {
        asking = false;
      }
    };
    const loop = poll(status, (signal) => get('reading the status', '/v1/status', { signal }), (s) => {
      draw(body, s, moves);
      if (s.leader.id) askMoves();
      else tell(null);
    }, 3000);
    return () => {
      loop.end();
      left.abort('left');
    };
  },
};
