// The request loop of a view: one request at a time, none while the page is hidden, growing pauses while they fail.

import { el, put } from './dom.js';
import { duration } from './format.js';
import { wayOut } from './api.js';

const MOST_PAUSE = 30000;

// poll calls ask(signal) and passes the answer to draw, again and again, and shows the age of the answer and errors in
// status. It returns end, which ends the loop, and now, which calls ask immediately.
export function poll(status, ask, draw, every) {
  let timer = null;
  let flight = null;
  let ended = false;
  let failures = 0;
  let fresh = 0;
  let problem = null;

  const age = setInterval(say, 1000);
  document.addEventListener('visibilitychange', visible);

  function say() {
    const stale = fresh && Date.now() - fresh > 3 * every;
    const text = fresh ? `${stale ? 'old: ' : ''}as of ${duration(Math.max(0, Date.now() - fresh))} ago`.replace(/as of \d+(\.\d)? ms ago/, 'as of now')
      : 'loading…';
    status.age.textContent = text;
    status.age.className = stale ? 'age stale' : 'age';
  }

  async function once() {
    if (ended || flight || document.hidden) return;
    clearTimeout(timer);
    flight = new AbortController();
    const mine = flight;
    try {
      const answer = await ask(mine.signal);
      if (ended) return;
      failures = 0;
      fresh = Date.now();
      draw(answer);
      if (problem) put(status.trouble);
      problem = null;
    } catch (err) {
      if (ended || err.code === 'CANCELLED') return;
      if (!(err.what)) console.error(err);
      failures++;
      problem = err;
      put(status.trouble, await trouble(err));
    } finally {
      flight = null;
      if (!ended) {
        say();
        timer = setTimeout(once, Math.min(every * 2 ** Math.min(failures, 6), Math.max(every, MOST_PAUSE)));
      }
    }
  }

  function visible() {
    if (!document.hidden) once();
    else clearTimeout(timer);
  }

  once();
  return {
    now: once,
    end() {
      ended = true;
      clearTimeout(timer);
      clearInterval(age);
      document.removeEventListener('visibilitychange', visible);
      if (flight) flight.abort('left');
    },
  };
}

// trouble returns a node that says what failed, why, and what to do.
export async function trouble(err) {
  const what = err.what ? `${err.what[0].toUpperCase()}${err.what.slice(1)} failed` : 'The console failed';
  const next = await wayOut(err);
  return el('div', { class: 'trouble', role: 'alert' }, el('strong', {}, what), el('p', { class: 'pre' },
    err.code && err.code !== 'UNREACHABLE' ? `${err.code}: ` : '', err.detail || err.message || String(err)),
  next && el('p', {}, el('b', {}, 'What to do: '), next),
  err.request_id && el('p', { class: 'dim' }, `In the managers’ logs it has the request_id ${err.request_id}.`));
}
