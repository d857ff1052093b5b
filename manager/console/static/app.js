// The frame around the views: login, navigation, keys, light and dark theme.

import { add, button, el, put } from './lib/dom.js';
import { Problem, beginSession, endSession, get, whenUnauthenticated } from './lib/api.js';
import { trouble } from './lib/poll.js';
import { time } from './lib/format.js';
import { overview } from './views/overview.js';
import { processes } from './views/processes.js';
import { indexes } from './views/indexes.js';
import { placement } from './views/placement.js';
import { freshness } from './views/freshness.js';
import { load } from './views/load.js';
import { streams } from './views/streams.js';
import { workbench } from './views/workbench.js';
import { statements } from './views/statements.js';
import { timeline } from './views/timeline.js';

const views = [overview, processes, indexes, placement, freshness, streams, workbench, statements, timeline, load];

const app = document.getElementById('app');
let who = null;
let leave = null; // ends the current view
let retry = null; // timer of the next attempt to identify the user

theme(localStorage.getItem('theme'));
whenUnauthenticated(() => { if (who) begin(); });
addEventListener('hashchange', () => { if (who) show(); });
addEventListener('keydown', keys);
begin();

function theme(name) {
  if (name === 'light' || name === 'dark') document.documentElement.setAttribute('data-theme', name);
  else document.documentElement.removeAttribute('data-theme');
}

function otherTheme() {
  const dark = document.documentElement.getAttribute('data-theme') === 'dark'
    || !document.documentElement.hasAttribute('data-theme') && matchMedia('(prefers-color-scheme: dark)').matches;
  const next = dark ? 'light' : 'dark';
  localStorage.setItem('theme', next);
  theme(next);
}

// begin identifies the user; without valid credentials it shows the login form.
async function begin() {
  clearTimeout(retry);
  if (leave) leave();
  leave = null;
  who = null;
  try {
    who = await get('identifying the user', '/v1/whoami');
    forget(who.name);
    frame();
    show();
  } catch (err) {
    if (err.status === 401) return login();
    put(app, el('main', { id: 'main', class: 'alone' }, el('h1', {}, 'tidemark'), await trouble(err),
      el('p', { class: 'dim' }, 'Trying again every two seconds.')));
    retry = setTimeout(begin, 2000);
  }
}

// forget deletes what the page stores across reloads, such as the text of statements, unless it belongs to this user.
function forget(name) {
  if (sessionStorage.getItem('of') === name) return;
  sessionStorage.clear();
  sessionStorage.setItem('of', name);
}

function login() {
  const name = el('input', { id: 'name', autocomplete: 'username', required: true, maxlength: 200, autocapitalize: 'none', spellcheck: 'false' });
  const password = el('input', { id: 'password', type: 'password', autocomplete: 'current-password', required: true, maxlength: 1024 });
  const message = el('div', { 'aria-live': 'polite' });
  const enter = el('button', { type: 'submit', class: 'main' }, 'Log in');
  const form = el('form', { class: 'card login', onsubmit: async (e) => {
    e.preventDefault();
    enter.disabled = true;
    put(message, 'Logging in…');
    try {
      const basic = btoa(String.fromCharCode(...new TextEncoder().encode(`${name.value}:${password.value}`)));
      await beginSession(`Basic ${basic}`);
      password.value = '';
      begin();
    } catch (err) {
      put(message, await trouble(err));
      password.select();
    } finally {
      enter.disabled = false;
    }
  } }, el('h1', {}, 'tidemark'), el('p', {}, 'This cluster has users. Log in to see it.'),
  el('label', { for: 'name' }, 'User'), name, el('label', { for: 'password' }, 'Password'), password, enter, message,
  el('p', { class: 'dim' }, 'The session ends after eight hours, or when you log out. Without a user, ask an administrator: tidemark user add NAME --role read'));
  put(app, el('main', { id: 'main', class: 'alone' }, form));
  document.title = 'Log in · tidemark';
  name.focus();
}

async function logout() {
  try {
    await endSession();
  } catch (err) {
    if (!(err instanceof Problem) || err.status !== 401) {
      put(document.getElementById('notice'), await trouble(err));
      return;
    }
  }
  forget('');
  if (who) begin(); // otherwise a 401 has already led to the login form
}

// frame draws the parts of the page that all views share.
function frame() {
  const links = views.map((v, i) => el('a', { href: `#/${v.path}`, 'data-path': v.path, title: `key ${(i + 1) % 10}` }, v.title));
  const user = who.by === 'nothing' ? el('span', { class: 'dim', title: 'This cluster has no users: anyone who can reach this port may do everything.' }, 'no users: open')
    : el('span', { title: who.ends_ms ? `until ${time(who.ends_ms)}` : '' }, who.name, el('span', { class: 'dim' }, ` role ${who.role}`));
  put(app, el('header', { class: 'top' }, el('a', { class: 'brand', href: '#/' }, 'tidemark'),
    el('nav', { 'aria-label': 'Views' }, links),
    el('div', { class: 'tools' }, user, who.by === 'session' && button('Log out', logout),
      button('Light/dark', otherTheme), button('Keys', help, { title: 'key ?' }))),
  el('div', { id: 'notice' }), el('main', { id: 'main', tabindex: '-1' }));
}

// where parses the address, such as #/indexes?id=3.
function where() {
  const [path, query] = location.hash.replace(/^#\/?/, '').split('?');
  return { path, query: new URLSearchParams(query || '') };
}

function show() {
  const { path, query } = where();
  const view = views.find((v) => v.path === path);
  if (leave) leave();
  leave = null;
  for (const a of document.querySelectorAll('nav a')) {
    const here = view && a.getAttribute('data-path') === view.path;
    if (here) {
      a.setAttribute('aria-current', 'page');
      a.scrollIntoView({ block: 'nearest', inline: 'nearest' });
    } else a.removeAttribute('aria-current');
  }
  const main = document.getElementById('main');
  put(document.getElementById('notice'));
  if (!view) {
    put(main, el('h1', {}, 'There is no such view'), el('p', {}, 'Choose one above.'));
    return;
  }
  document.title = `${view.title} · tidemark`;
  const status = { age: el('span', { class: 'age' }), trouble: el('div', { 'aria-live': 'polite' }) };
  const body = el('div', { class: 'view' });
  const tools = el('div', { class: 'viewtools' });
  put(main, el('div', { class: 'head' }, el('h1', {}, view.title), tools, status.age), status.trouble, body);
  leave = view.show({ body, tools, status, query, who, may: (role) => may(role) }) || null;
  scrollTo(0, 0);
}

const ranks = { read: 1, ddl: 2, admin: 3 };
function may(role) { return (ranks[who && who.role] || 0) >= ranks[role]; }

function typing(e) {
  return e.target.closest && e.target.closest('input, textarea, select, [contenteditable]');
}

function keys(e) {
  if (e.ctrlKey || e.metaKey || e.altKey || !who) return;
  if (e.key === 'Escape') {
    const open = document.querySelector('dialog[open]');
    if (!open && typing(e)) e.target.blur();
    return;
  }
  if (typing(e) || document.querySelector('dialog[open]')) return;
  const n = '1234567890'.indexOf(e.key);
  if (n >= 0 && views[n]) {
    location.hash = `#/${views[n].path}`;
    e.preventDefault();
  } else if (e.key === '/') {
    const filter = document.querySelector('main input[type=search]');
    if (filter) {
      filter.focus();
      e.preventDefault();
    }
  } else if (e.key === '?') help();
  else if (e.key === 'd') otherTheme();
}

function help() {
  const d = el('dialog', { onclose: () => d.remove() }, el('h2', {}, 'Keys'), el('dl', { class: 'facts' },
    views.map((v, i) => el('div', {}, el('dt', {}, String((i + 1) % 10)), el('dd', {}, v.title))),
    [['/', 'goes to the filter'], ['d', 'switches between light and dark'], ['?', 'shows this list'], ['Esc', 'leaves a field, or closes this list'],
      ['Ctrl+Enter', 'runs a statement or a scan'], ['Ctrl+Space', 'completes a word of a statement']]
      .map(([k, v]) => el('div', {}, el('dt', {}, k), el('dd', {}, v)))),
  el('form', { method: 'dialog', onsubmit: (e) => { e.preventDefault(); d.close(); } }, el('button', { type: 'submit' }, 'Close')));
  add(document.body, d);
  d.showModal();
}
