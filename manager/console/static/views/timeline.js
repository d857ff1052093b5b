// The changes of the replicated state, newest first, with the user who made each: the stream of events since BACK.

import { card, el, empty, put, word } from '../lib/dom.js';
import { get, lines } from '../lib/api.js';
import { bytes, count, date, many, time } from '../lib/format.js';
import { trouble } from '../lib/poll.js';
import { indexState } from '../lib/states.js';

const BACK = 1000; // how many changes before the newest one the stream begins
const KEPT = 500; // maximum number of changes shown
const groups = { indexes: ['index'], data: ['bucket', 'rollback', 'difference'], placement: ['topology', 'rebalance'], members: ['leader', 'manager', 'projector', 'indexer', 'cluster'] };

const stateOf = (s) => indexState({ state: s }).text;

// described returns a sentence about a change: [text, kind of colour].
function described(e) {
  const index = e.bucket ? `${e.bucket}/${e.name}` : e.name;
  switch (e.kind) {
    case 'index': return describedIndex(e, index);
    case 'leader': return [`${e.name} leads, term ${e.number ?? ''}`, 'warn'];
    case 'manager': return [e.removed ? `manager ${(e.manager || {}).name || e.name} was removed` : `manager ${(e.manager || {}).name || e.name} has registered`, e.removed ? 'warn' : 'plain'];
    case 'projector': return [e.removed ? `projector ${e.name} was removed` : `projector ${e.name} has registered`, e.removed ? 'warn' : 'plain'];
    case 'indexer': return describedIndexer(e);
    case 'cluster': return [e.restored ? 'the state was restored from a backup' : e.cluster ? `the cluster’s limits or its format (level ${e.cluster.format_level}) have changed` : 'users or tokens have changed', e.restored ? 'warn' : 'plain'];
    case 'bucket': return [e.removed ? `bucket ${e.name} was removed` : `bucket ${e.name} was registered${e.vbuckets ? `, ${many(e.vbuckets, 'vbucket')}` : ''}`, 'plain'];
    case 'topology': return [`slices of ${index}: ${copies(e.topology)}`, 'plain'];
    case 'rollback': return [`bucket ${e.bucket || e.name} is being rolled back: step ${e.step || 'done'}`, e.step ? 'bad' : 'good'];
    case 'rebalance': return describedRebalance(e);
    case 'difference': return e.removed ? [`a slice of ${index} agrees with KV again, or no longer exists`, 'good']
      : [`slice ${e.difference.slice} of ${index} on ${e.difference.indexer} differs from KV in ${many(e.difference.documents, 'document')}${e.difference.taken_anew ? ', which are streamed again' : ''}`, 'bad'];
    case 'session': return [e.removed ? `a console session of ${e.name} has ended` : `a console session of ${e.name} has begun`, 'plain'];
    default: return [`${e.kind} ${e.name || ''}`, 'plain'];
  }
}

function describedIndex(e, index) {
  if (e.removed) return [`index ${index} was removed`, 'plain'];
  const d = e.definition || {};
  const now = indexState(d);
  if (!e.was) return [`index ${index} created: ${d.definition || ''}`, 'good'];
  if (e.was === d.state) return [`index ${index} changed (${now.text})`, 'plain'];
  return [`index ${index}: ${stateOf(e.was)} → ${now.text}${d.reason ? `: ${d.reason}` : ''}`, now.kind];
}

function describedIndexer(e) {
  const name = (e.indexer || {}).name || e.name;
  if (e.removed) return [`indexer ${name} was removed`, 'warn'];
  if (e.going) return [`indexer ${name} is to be emptied`, 'warn'];
  return [`indexer ${name} has registered`, 'plain'];
}

function describedRebalance(e) {
  const r = e.rebalance;
  if (r) return [`rebalance ${r.id}: ${r.phase}, ${r.done} of ${many(r.steps, 'move')}${r.cause ? `; ${r.cause}` : ''}`, r.given_up ? 'bad' : 'plain'];
  const s = e.rebalance_step || {};
  return [`a move of slice ${s.slice} of index ${e.index}: ${s.state}${s.reason ? `: ${s.reason}` : ''}, ${bytes(s.bytes)}`, s.reason ? 'warn' : 'plain'];
}

function copies(t) {
  if (!t) return 'changed';
  const states = {};
  for (const c of t.copies || []) states[c.state] = (states[c.state] || 0) + 1;
  return Object.entries(states).map(([s, n]) => `${n} ${s}`).join(', ') || 'none';
}

export const timeline = {
  path: 'timeline', title: 'What happened',
  show({ body, tools, status }) {
    const ended = new AbortController();
    let events = [];
    let resume = null;
    let note = '';
    let waiting = null;
    const shown = new Set(Object.keys(groups));
    const filter = el('input', { type: 'search', placeholder: 'name, user or word', 'aria-label': 'Filter', oninput: draw });
    put(tools, filter, el('span', { class: 'chips' }, Object.keys(groups).map((g) => el('label', {}, el('input', { type: 'checkbox', checked: true, onchange: (e) => {
      if (e.target.checked) shown.add(g);
      else shown.delete(g);
      draw();
    } }), g))));
    put(body, card(null, 'Asking the cluster…'));
    follow();

    function draw() {
      const kinds = new Set([...shown].flatMap((g) => groups[g]));
      const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      const list = events.filter((e) => kinds.has(e.kind)).map((e) => ({ e, sentence: described(e) }))
        .filter(({ e, sentence }) => words.every((w) => `${sentence[0]} ${e.kind} ${e.by || ''}`.toLowerCase().includes(w)));
      put(body, card(null, note && el('p', { class: 'dim' }, note), list.length ? el('ol', { class: 'events' }, list.map(({ e, sentence }) => el('li', {},
        el('time', { class: 'num', title: date(e.time_ms) }, time(e.time_ms)), el('span', {}, word(e.kind, sentence[1])), el('span', { class: 'wrap', title: `cas ${count(e.cas)}` }, sentence[0]),
        el('span', { class: 'who' }, e.by ? `by ${e.by}` : 'by the cluster itself'))))
        : empty(events.length ? 'No change matches the filter.' : 'The manager has no recent changes.', events.length ? 'Clear the filter, or select more kinds.' : 'Changes appear here as they happen.')));
    }

    async function follow() {
      clearTimeout(waiting);
      if (ended.signal.aborted) return;
      try {
        let since = resume;
        if (since === null) {
          const s = await get('reading the status', '/v1/status?consistency=stale', { signal: ended.signal });
          since = String(Math.max(1, s.cas - BACK));
        }
        let kind = '';
        let id = '';
        await lines('following the events', 'GET', `/v1/events?since=${encodeURIComponent(since)}`, { signal: ended.signal, online: (line) => {
          put(status.trouble);
          status.age.textContent = 'live';
          if (line.startsWith('id: ')) id = line.slice(4);
          else if (line.startsWith('event: ')) kind = line.slice(7);
          else if (line.startsWith('data: ')) take(kind, JSON.parse(line.slice(6)));
          else if (line === '' && id) resume = id;
          if (!events.length && (note || line.startsWith(':'))) draw(); // all earlier changes arrive before the first heartbeat
          return true;
        } });
        waiting = setTimeout(follow, 1000);
      } catch (err) {
        if (ended.signal.aborted || err.code === 'CANCELLED') return;
        status.age.textContent = 'disconnected; reconnecting';
        put(status.trouble, await trouble(err));
        waiting = setTimeout(follow, 3000);
      }
    }

    function take(kind, data) {
      if (kind === 'snapshot') note = `This manager no longer has earlier changes: ${data.detail}.`;
      if (kind !== 'change') return;
      events = [...[...data.events].reverse(), ...events].slice(0, KEPT);
      schedule();
    }

    let soon = null;
    function schedule() { // changes that arrive together are drawn once
      soon ||= setTimeout(() => { soon = null; draw(); }, 100);
    }

    return () => {
      ended.abort('left');
      clearTimeout(waiting);
      clearTimeout(soon);
    };
  },
};
