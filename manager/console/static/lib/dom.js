// Nodes of the page. All texts are inserted as text nodes: no text of a server, a user or a document is parsed as HTML.

const SVG = 'http://www.w3.org/2000/svg';

function fill(node, attrs, children) {
  for (const [name, value] of Object.entries(attrs || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (name === 'value') node.value = value;
    else if (name === 'checked') node.checked = value;
    else node.setAttribute(name, value === true ? '' : String(value));
  }
  add(node, children);
  return node;
}

// add appends strings, numbers, nodes and lists of them; it skips null, undefined, false and ''.
export function add(node, children) {
  for (const c of [children].flat(Infinity)) {
    if (c === null || c === undefined || c === false || c === '') continue;
    node.append(c instanceof Node ? c : String(c));
  }
  return node;
}

export const el = (tag, attrs, ...children) => fill(document.createElement(tag), attrs, children);
export const svg = (tag, attrs, ...children) => fill(document.createElementNS(SVG, tag), attrs, children);

// put replaces the content of a node. If the focus was on a control in it, the control with the same data-k gets it.
export function put(node, ...children) {
  const held = node.contains(document.activeElement) ? document.activeElement.getAttribute('data-k') : null;
  const { scrollLeft } = node;
  node.replaceChildren();
  add(node, children);
  node.scrollLeft = scrollLeft;
  if (held) {
    const again = [...node.querySelectorAll('[data-k]')].find((n) => n.getAttribute('data-k') === held);
    if (again) again.focus({ preventScroll: true });
  }
  return node;
}

// word returns a node for a state: always a text, with a colour in addition.
export function word(text, kind, title) {
  return el('span', { class: `word ${kind || 'plain'}`, title }, text);
}

export function button(text, onclick, attrs) {
  return el('button', { type: 'button', onclick, 'data-k': text, ...attrs }, text);
}

export function card(title, ...children) {
  return el('section', { class: 'card' }, title && el('h2', {}, title), children);
}

export function empty(what, next) {
  return el('div', { class: 'empty' }, el('p', {}, what), next && el('p', { class: 'dim' }, next));
}

// bar returns a progress bar with its label beside it.
export function bar(percent, label) {
  const b = el('progress', { max: 100, 'aria-label': label });
  b.value = Math.max(0, Math.min(100, percent));
  return el('span', { class: 'bar' }, b, el('span', {}, label));
}

// dl returns a list of names and values; it omits values that are null, undefined, false or ''.
export function dl(pairs, wide) {
  return el('dl', { class: wide ? 'facts wide' : 'facts' }, pairs.filter(([, v]) => v !== null && v !== undefined && v !== false && v !== '')
    .map(([k, v]) => el('div', {}, el('dt', {}, k), el('dd', {}, v))));
}

// table draws rows with columns {name, cell, num, sort, hint}. sort returns the value by which a column is sorted.
// state keeps the user's choice of the order between two calls; again draws the table anew.
export function table(columns, rows, { state = {}, again, none, label, onrow } = {}) {
  if (!rows.length && none) return none;
  const by = columns.find((c) => c.name === state.by && c.sort);
  const sorted = by ? [...rows].sort((a, b) => compare(by.sort(a), by.sort(b)) * (state.down ? -1 : 1)) : rows;
  const head = columns.map((c) => {
    const order = by === c ? (state.down ? 'descending' : 'ascending') : null;
    const choose = () => {
      state.down = by === c ? !state.down : Boolean(c.num);
      state.by = c.name;
      again();
    };
    return el('th', { scope: 'col', class: c.num && 'num', 'aria-sort': order, title: c.hint },
      c.sort && again ? el('button', { type: 'button', class: 'sort', onclick: choose, 'data-k': `sort ${c.name}` },
        c.name, order && el('span', { 'aria-hidden': 'true' }, state.down ? ' ↓' : ' ↑')) : c.name);
  });
  const body = sorted.map((r) => el('tr', { class: onrow && 'click', onclick: onrow && ((e) => {
    if (!e.target.closest('button, a, input')) onrow(r);
  }) }, columns.map((c) => el('td', { class: c.num && 'num', 'data-label': c.name }, c.cell(r)))));
  return el('div', { class: 'scroll' }, el('table', { 'aria-label': label },
    el('thead', {}, el('tr', {}, head)), el('tbody', {}, body)));
}

function compare(a, b) {
  if (typeof a === 'number' && typeof b === 'number') return a - b;
  return String(a ?? '').localeCompare(String(b ?? ''), 'en', { numeric: true });
}
