// Which projector streams which vbucket: a heat map of each bucket, stuck vbuckets, and rollbacks.

import { button, card, dl, el, empty, put, table, word } from '../lib/dom.js';
import { get } from '../lib/api.js';
import { ago, count, date, duration, many } from '../lib/format.js';
import { poll } from '../lib/poll.js';

const kinds = { begun: 'good', requested: 'warn', ended: 'bad', lost: 'bad', unknown: 'warn', idle: 'plain' };
const letters = { begun: '', requested: 'R', ended: 'E', lost: 'L', unknown: '?', idle: '·' };
const PAGE = 8192;

function counts(b) {
  return ['begun', 'requested', 'ended', 'lost', 'unknown', 'idle'].filter((s) => b[s] || s === 'begun')
    .map((s) => [word(`${count(b[s])} ${s}${letters[s] ? ` (${letters[s]})` : ''}`, b[s] ? kinds[s] : 'plain'), ' ']);
}

function rollbackCard(list) {
  return card('Rollbacks', table([
    { name: 'Bucket', cell: (r) => el('b', {}, r.bucket) },
    { name: 'Step', cell: (r) => word(r.id ? r.step : 'needed, not begun', 'bad') },
    { name: 'Since', cell: (r) => (r.since_ms ? ago(r.since_ms) : '–') },
    { name: 'Waits for', cell: (r) => (r.waits || []).join(', ') || 'no component' },
    { name: 'Detail', cell: (r) => el('span', { class: 'wrap' }, r.detail || '–') },
  ], list, { label: 'Rollbacks', none: el('p', {}, 'No rollback is running or needed.') }));
}

export const streams = {
  path: 'streams', title: 'Streams',
  show({ body, tools, status }) {
    let bucket = '';
    let chosen = null;
    let last = null;
    const choice = el('select', { 'aria-label': 'Bucket', onchange: () => { bucket = choice.value; chosen = null; loop.now(); } });
    put(tools, choice);
    put(body, card(null, 'Asking the cluster…'));
    const ask = async (signal) => {
      const [s, r] = await Promise.all([get('reading the streams', `/v1/streams?limit=${bucket ? PAGE : 1}${bucket ? `&bucket=${encodeURIComponent(bucket)}` : ''}`, { signal }),
        get('listing the rollbacks', '/v1/rollbacks', { signal })]);
      if (s.buckets.length && bucket) return { s, r };
      if (bucket) { // it no longer exists; others may
        bucket = '';
        return ask(signal);
      }
      if (!s.buckets.length) return { s, r };
      bucket = s.buckets[0].bucket; // the first request only lists the buckets
      put(choice, s.buckets.map((b) => el('option', { value: b.bucket }, b.bucket)));
      return { s: await get('reading the streams', `/v1/streams?limit=${PAGE}&bucket=${encodeURIComponent(bucket)}`, { signal }), r };
    };

    function draw() {
      const { s, r } = last;
      const b = s.buckets[0];
      if (!b) {
        put(body, empty('No bucket has an index.', el('span', {}, 'Create one under ', el('a', { href: '#/statements' }, 'Statements'), '.')), rollbackCard(r.rollbacks));
        return;
      }
      const owners = [...new Set(s.streams.map((x) => x.owner).filter(Boolean))].sort();
      const one = s.streams.find((x) => x.vbucket === chosen);
      put(body, card(`${b.bucket}: ${many(b.vbuckets, 'vbucket')}`, el('p', {}, b.wanted ? counts(b) : 'No index needs its streams.'),
        el('div', { class: 'heat', role: 'group', 'aria-label': 'vbuckets' }, s.streams.map((x) => button(`${x.vbucket}`, () => { chosen = chosen === x.vbucket ? null : x.vbucket; draw(); }, {
          class: kinds[x.state] || 'plain', 'data-k': `vb ${x.vbucket}`, 'aria-pressed': String(x.vbucket === chosen), 'aria-label': `vbucket ${x.vbucket}: ${x.state}`,
          title: `vbucket ${x.vbucket}: ${x.state}${x.owner ? `, by ${x.owner}` : ''}${x.reason ? `: ${x.reason}` : ''}`, 'data-state': x.state }))),
        el('p', { class: 'dim' }, `Each field is a vbucket; select one for details. Owners: ${owners.join(', ') || 'none'}. ${many(b.repairs, 'batch', 'batches')} of stream requests in this leader’s term.`),
        one && dl([['vbucket', one.vbucket], ['state', word(one.state, kinds[one.state])], ['owner', one.owner || 'none'], ['since', `${date(one.since_ms)}, ${ago(one.since_ms)}`],
          ['incarnation', el('span', { class: 'mono' }, one.incarnation)], ['reason', one.reason]])),
      card('Stuck', table([
        { name: 'vbucket', cell: (x) => String(x.vbucket) },
        { name: 'State', cell: (x) => word(x.state, kinds[x.state]) },
        { name: 'For', cell: (x) => duration(x.for_ms) },
        { name: 'Why', cell: (x) => el('span', { class: 'wrap' }, x.reason) },
      ], b.stuck || [], { label: 'Stuck vbuckets', none: el('p', {}, 'No vbucket has been without a stream for more than 10 s.') })), rollbackCard(r.rollbacks));
    }

    const loop = poll(status, ask, (answer) => { last = answer; draw(); }, 3000);
    return loop.end;
  },
};
