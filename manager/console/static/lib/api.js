// The manager's REST interface. Every call is bounded by its own time limit or by the caller's signal.

const PATIENCE = 15000;

// Problem is the error with which a manager refuses a call (RFC 9457), or the reason why no answer arrived. what names
// the action that failed.
export class Problem extends Error {
  constructor(what, fields = {}) {
    super(fields.detail || fields.title || 'no answer');
    Object.assign(this, { what, status: 0, code: '', title: '', detail: '', request_id: '' }, fields);
  }
}

let onUnauthenticated = () => {};
export const whenUnauthenticated = (f) => { onUnauthenticated = f; };

function headers(more) {
  return { 'Tidemark-Console': '1', ...more };
}

// key returns an Idempotency-Key: a retry of the same request with the same key is executed once.
export function key() {
  const b = crypto.getRandomValues(new Uint8Array(16));
  return [...b].map((x) => x.toString(16).padStart(2, '0')).join('');
}

async function refusal(what, answer) {
  let fields = {};
  try {
    fields = await answer.json();
  } catch {
    fields = { title: answer.statusText };
  }
  const p = new Problem(what, { ...fields, status: answer.status });
  if (p.status === 401) onUnauthenticated(p);
  return p;
}

// open sends a request and returns its answer before the body has been read.
async function open(what, method, path, { body, raw, more, signal } = {}) {
  const sent = raw ?? (body === undefined ? undefined : JSON.stringify(body));
  let answer;
  try {
    answer = await fetch(path, { method, signal, headers: headers({ ...more,
      ...(sent === undefined ? {} : { 'Content-Type': 'application/json' }) }),
    body: sent, cache: 'no-store', credentials: 'same-origin',
    redirect: 'error' });
  } catch (err) {
    throw unreachable(what, signal, err);
  }
  if (!answer.ok) throw await refusal(what, answer);
  return answer;
}

function unreachable(what, signal, err) {
  if (signal && signal.aborted && signal.reason !== 'time') return new Problem(what, { code: 'CANCELLED', title: 'Cancelled' });
  if (signal && signal.aborted) {
    return new Problem(what, { code: 'TIMEOUT', title: 'No answer in time',
      detail: `this manager did not answer within ${PATIENCE / 1000} s`, wayOut: 'Views retry automatically. Look at the manager’s log, or open the console of another manager.' });
  }
  return new Problem(what, { code: 'UNREACHABLE', title: 'The manager cannot be reached', detail: String(err.message || err),
    wayOut: 'Views retry automatically. Check that the manager runs, or open the console of another manager.' });
}

// limited returns a signal that aborts after ms, or when the caller's signal does. The caller must call done.
function limited(signal, ms) {
  const c = new AbortController();
  const timer = setTimeout(() => c.abort('time'), ms);
  const end = () => c.abort(signal.reason);
  if (signal) {
    if (signal.aborted) end();
    else signal.addEventListener('abort', end, { once: true });
  }
  return { signal: c.signal, done: () => { clearTimeout(timer); if (signal) signal.removeEventListener('abort', end); } };
}

// call sends a request and returns the JSON of its answer. what names the action, for errors.
export async function call(what, method, path, { body, raw, more, signal, patience = PATIENCE } = {}) {
  const limit = limited(signal, patience);
  try {
    const answer = await open(what, method, path, { body, raw, more, signal: limit.signal });
    if (answer.status === 204) return null;
    return await answer.json();
  } catch (err) {
    throw err instanceof Problem ? err : unreachable(what, limit.signal, err);
  } finally {
    limit.done();
  }
}

export const get = (what, path, opts) => call(what, 'GET', path, opts);

// ELECTION asks a manager without a leader to wait up to 10 s (less than PATIENCE) for the next one before it refuses.
const ELECTION = { Prefer: 'wait=10' };

// write sends a request that changes something; retries are executed once.
export const write = (what, method, path, body, opts = {}) => call(what, method, path,
  { ...opts, body, more: { 'Idempotency-Key': key(), ...ELECTION, ...(opts.more || {}) } });

// beginSession and endSession are idempotent.
export const beginSession = (authorization) => call('the login', 'POST', '/v1/session', { more: { ...ELECTION, Authorization: authorization } });
export const endSession = () => call('the logout', 'DELETE', '/v1/session', { more: ELECTION });

// lines reads an answer line by line as it arrives. It calls online with each line until online returns false.
export async function lines(what, method, path, { raw, signal, online }) {
  const answer = await open(what, method, path, { raw, signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const parts = (rest + value).split('\n');
      rest = parts.pop();
      for (const p of parts) if (online(p) === false) return;
    }
    if (rest) online(rest);
  } catch (err) {
    throw unreachable(what, signal, err);
  } finally {
    reader.cancel().catch(() => {});
  }
}

let codes = null;

// wayOut returns what to do about a problem, from /v1/errors; '' if that is not known.
export async function wayOut(problem) {
  if (problem.wayOut || !problem.code) return problem.wayOut || '';
  try {
    codes ||= get('reading the codes of problems', '/v1/errors');
    const found = (await codes).errors.find((c) => c.code === problem.code);
    return found ? found.way_out || '' : '';
  } catch {
    codes = null;
    return '';
  }
}

// Exact is a JSON number that a browser's number cannot represent; it keeps the number's text. parseExact returns it.
export class Exact {
  constructor(text) { this.text = text; }
  toString() { return this.text; }
}

export function parseExact(text) {
  return JSON.parse(text, (k, v, ctx) => (typeof v === 'number' && ctx && ctx.source !== undefined
    && String(v) !== ctx.source ? new Exact(ctx.source) : v));
}

// show formats a value of parseExact as JSON.
export function show(v) {
  if (v instanceof Exact) return v.text;
  if (Array.isArray(v)) return `[${v.map(show).join(', ')}]`;
  if (v && typeof v === 'object') return `{${Object.entries(v).map(([k, x]) => `${JSON.stringify(k)}: ${show(x)}`).join(', ')}}`;
  return JSON.stringify(v);
}

export const indexPath = (id, verb = '') => `/v1/indexes/${encodeURIComponent(id)}${verb}`;
