// States as words, each with its kind of colour.

import { word } from './dom.js';

const processKinds = { active: 'good', alive: 'good', suspect: 'warn', offline: 'bad', unknown: 'plain', silent: 'bad' };
export const processState = (s) => word(s, processKinds[s] || 'plain');

// indexState returns the state of an index as users see it. GET /v1/indexes and /v1/stats name the fields alike, except
// for the state.
export function indexState(i) {
  const state = i.state || i.index_state;
  const a = i.availability;
  switch (state) {
    case 'ready':
      if (!a || a.state === 'available') return { text: 'ready', kind: 'good' };
      if (a.state === 'degraded') return { text: 'ready, degraded', kind: 'warn', why: a.why };
      return { text: 'unavailable', kind: 'bad', why: a.why };
    case 'backfill': return { text: 'building', kind: 'warn' };
    case 'pending': return i.deferred ? { text: 'deferred', kind: 'plain' } : { text: 'pending', kind: 'warn' };
    case 'dropping': return { text: 'dropping', kind: 'plain' };
    case 'error': return { text: 'error', kind: 'bad', why: i.reason };
    default: return { text: state || 'unknown', kind: 'plain' };
  }
}

export function indexWord(i) {
  const s = indexState(i);
  return word(s.text, s.kind, s.why);
}

export const keyspace = (i) => (i.scope ? `${i.bucket}.${i.scope}.${i.collection}` : i.bucket);

const verdicts = { ready: 'good', degraded: 'warn', 'not ready': 'bad' };
export const verdictKind = (v) => verdicts[v] || 'plain';
