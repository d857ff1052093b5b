// Scans, with a form that is made from the index's definition.

import { button, card, dl, el, empty, put, table, word } from '../lib/dom.js';
import { Exact, call, get, indexPath, lines, parseExact, show } from '../lib/api.js';
import { count, duration, many } from '../lib/format.js';
import { trouble } from '../lib/poll.js';
import { indexState, keyspace } from '../lib/states.js';

const SHOWN = 500; // maximum number of rows of a page; Count counts all

// valueOf parses what the user typed for a component: JSON, or otherwise plain text.
function valueOf(text) {
  try {
    return parseExact(text);
  } catch {
    return text;
  }
}

// encode returns a request's body; numbers that a browser cannot represent are sent as they were written.
function encode(v) {
  if (v instanceof Exact) return v.text;
  if (Array.isArray(v)) return `[${v.map(encode).join(',')}]`;
  if (v && typeof v === 'object') return `{${Object.entries(v).filter(([, x]) => x !== undefined).map(([k, x]) => `${JSON.stringify(k)}:${encode(x)}`).join(',')}}`;
  return JSON.stringify(v);
}

// keysOf returns the components of an index's key, by their expressions.
function keysOf(i) {
  const keys = i.is_primary ? [{ expr: 'META().id' }] : (i.keys || []);
  return keys.slice(0, 16);
}

// bounds converts the form's rows to the bounds of a scan: equal components first, then one range.
function bounds(rows) {
  const prefix = [];
  for (const r of rows) {
    if (r.op === 'is') {
      prefix.push(valueOf(r.low));
      continue;
    }
    if (r.op === 'between') {
      const low = r.low === '' ? [...prefix] : [...prefix, valueOf(r.low)];
      const high = r.high === '' ? [...prefix] : [...prefix, valueOf(r.high)];
      const range = { inclusion: r.high !== '' && r.openHigh ? 'low' : 'both' };
      if (low.length) range.low = low;
      if (high.length) range.high = high;
      return { range };
    }
    break;
  }
  return prefix.length ? { equal: prefix } : {};
}

const ops = ['count(*)', 'count', 'sum', 'avg', 'min', 'max'];

// nameOf returns an aggregate in the form of the command line.
const nameOf = (a, keys) => `${a.op}(${a.distinct ? 'distinct ' : ''}${a.component === undefined ? '*' : keys[a.component].expr})`;

export const workbench = {
  path: 'scan', title: 'Scan',
  show({ body, status, query }) {
    let all = [];
    let chosen = null;
    let running = null;
    status.age.textContent = '';
    const choice = el('select', { id: 'index', onchange: () => choose(choice.value) });
    const fields = el('div', {});
    const groups = el('div', { class: 'row chips' });
    const aggregates = el('div', {});
    const message = el('div', { 'aria-live': 'polite' });
    const result = el('div', { class: 'gap' });
    const side = el('div', {});
    const consistency = el('select', { id: 'consistency' }, el('option', { value: 'any' }, 'any: the newest timestamp available'),
      el('option', { value: 'session' }, 'session: everything that KV has now'));
    const limit = el('input', { id: 'limit', type: 'number', min: 1, max: SHOWN, value: '50' });
    const offset = el('input', { id: 'offset', type: 'number', min: 0, value: '0' });
    const reverse = el('input', { id: 'reverse', type: 'checkbox' });
    const distinct = el('input', { id: 'distinct', type: 'checkbox' });
    const go = el('button', { type: 'submit', class: 'main' }, 'Scan');
    const stop = button('Cancel', () => running && running.abort('left'), { disabled: true });
    const form = el('form', { onsubmit: (e) => { e.preventDefault(); scan(); }, onkeydown: (e) => { if (e.ctrlKey && e.key === 'Enter') scan(); } },
      el('div', { class: 'row' }, el('label', { for: 'index' }, 'Index'), choice), fields,
      el('div', { class: 'row' }, el('label', { for: 'consistency' }, 'Consistency'), consistency),
      el('div', { class: 'row' }, el('label', { for: 'limit' }, 'Rows, at most'), limit, el('label', { for: 'offset' }, 'after the first'), offset),
      el('div', { class: 'row chips' }, el('label', {}, reverse, 'from the end'), el('label', {}, distinct, 'each key once')),
      groups, aggregates,
      el('div', { class: 'row' }, go, button('Count', tally), stop));
    put(body, el('div', { class: 'two' }, el('div', { class: 'view' }, card('What to scan', form), message, result), side));
    put(side, card('Definition', el('p', { class: 'dim' }, 'Choose an index.')));

    const start = new AbortController();
    get('listing the indexes', '/v1/indexes?limit=1000', { signal: start.signal }).then((list) => {
      all = list.indexes.filter((i) => indexState(i).text !== 'dropping');
      if (!all.length) {
        put(body, empty('There is no index to scan.', el('span', {}, 'Create one under ', el('a', { href: '#/statements' }, 'Statements'), '.')));
        return;
      }
      put(choice, all.map((i) => el('option', { value: i.id }, `${keyspace(i)}/${i.name}${indexState(i).text === 'ready' ? '' : ` (${indexState(i).text})`}`)));
      if (list.next) put(message, el('p', { class: 'dim' }, 'Only the first 1,000 indexes are listed; scan others with the command line.'));
      const wanted = all.find((i) => i.id === query.get('id')) || all[0];
      choice.value = wanted.id;
      choose(wanted.id);
    }, async (err) => { if (err.code !== 'CANCELLED') put(message, await trouble(err)); });

    function choose(id) {
      if (running) running.abort('left');
      chosen = all.find((i) => i.id === id);
      put(fields, keysOf(chosen).map((k, n) => keyRow(k, n)));
      put(groups, el('span', { class: 'dim' }, 'Group by'), keysOf(chosen).map((k, n) => el('label', {},
        el('input', { type: 'checkbox', 'data-group': n, onchange: align }), el('span', { class: 'mono' }, k.expr))),
      button('Add an aggregate', () => { aggregates.append(aggregateRow()); align(); }));
      put(aggregates);
      align();
      const s = indexState(chosen);
      put(side, card('Definition', el('pre', {}, chosen.definition), dl([['state', word(s.text, s.kind, s.why)], ['entries', count(chosen.items)],
        ['slices', chosen.partition_by && chosen.partition_by.scheme ? `${chosen.num_partition}, by ${chosen.partition_by.scheme} of ${(chosen.partition_by.expressions || []).join(', ')}`
          : `${chosen.num_partition}, by the document’s id: every scan reads all of them`]]),
      el('p', { class: 'dim' }, 'Values are JSON: 12, true, "text". A value that is not JSON is used as text.')));
      put(result);
    }

    function keyRow(k, n) {
      const low = el('input', { type: 'text', 'aria-label': `value of ${k.expr}`, 'data-part': 'low', spellcheck: 'false', autocomplete: 'off' });
      const high = el('input', { type: 'text', 'aria-label': `upper bound of ${k.expr}`, 'data-part': 'high', placeholder: 'to', spellcheck: 'false', autocomplete: 'off' });
      const open = el('input', { type: 'checkbox', 'data-part': 'open' });
      const op = el('select', { 'aria-label': `condition on ${k.expr}`, 'data-part': 'op', onchange: align }, el('option', { value: 'any' }, 'anything'),
        el('option', { value: 'is' }, 'is'), el('option', { value: 'between' }, 'from … to'));
      return el('div', { class: 'keyrow', 'data-row': n }, el('span', { class: 'mono wrap' }, k.expr, k.desc && ' DESC'), op, el('div', {}, low, high,
        el('label', { 'data-part': 'openlabel' }, open, ' without the end')));
    }

    function aggregateRow() {
      const component = el('select', { 'aria-label': 'component', 'data-part': 'component' }, keysOf(chosen).map((k, n) => el('option', { value: n }, k.expr)));
      const row = el('div', { class: 'row', 'data-aggregate': '' }, el('select', { 'aria-label': 'aggregate', 'data-part': 'op', onchange: align }, ops.map((o) => el('option', { value: o }, o))),
        component, el('label', { 'data-part': 'differentlabel' }, el('input', { type: 'checkbox', 'data-part': 'different' }), ' distinct values'),
        button('Remove', () => { row.remove(); align(); }));
      return row;
    }

    // grouping returns the part of the request that makes a scan return groups: null without groups and aggregates, a
    // count if there are only groups.
    function grouping() {
      const by = [...groups.querySelectorAll('[data-group]')].filter((b) => b.checked).map((b) => Number(b.getAttribute('data-group')));
      const list = [...aggregates.querySelectorAll('[data-aggregate]')].map((row) => {
        const part = (name) => row.querySelector(`[data-part=${name}]`);
        const op = part('op').value;
        return op === ops[0] ? { op: 'count' } : { op, component: Number(part('component').value), ...(part('different').checked && !part('differentlabel').hidden ? { distinct: true } : {}) };
      });
      if (!by.length && !list.length) return null;
      return { ...(by.length ? { group_by: by } : {}), aggregates: list.length ? list : [{ op: 'count' }] };
    }

    // align shows the fields that have an effect: components after a range or after "anything" cannot be restricted.
    function align() {
      let open = true;
      for (const row of fields.querySelectorAll('[data-row]')) {
        const part = (name) => row.querySelector(`[data-part=${name}]`);
        part('op').disabled = !open;
        const op = open ? part('op').value : 'any';
        part('low').hidden = op === 'any';
        part('low').placeholder = op === 'is' ? 'value' : 'from';
        part('high').hidden = op !== 'between';
        part('openlabel').hidden = op !== 'between';
        if (op !== 'is') open = false;
      }
      for (const row of aggregates.querySelectorAll('[data-aggregate]')) {
        const op = row.querySelector('[data-part=op]').value;
        row.querySelector('[data-part=component]').hidden = op === ops[0];
        row.querySelector('[data-part=differentlabel]').hidden = !['count', 'sum', 'avg'].includes(op);
      }
      distinct.disabled = grouping() !== null; // each group is returned once anyway
    }

    function request() {
      const rows = [...fields.querySelectorAll('[data-row]')].map((row) => {
        const part = (name) => row.querySelector(`[data-part=${name}]`);
        return { op: part('op').disabled ? 'any' : part('op').value, low: part('low').value, high: part('high').value, openHigh: part('open').checked };
      });
      return { ...bounds(rows), consistency: consistency.value, ...(reverse.checked ? { reverse: true } : {}), ...(distinct.checked && !distinct.disabled ? { distinct: true } : {}), ...grouping(),
        ...(Number(offset.value) > 0 ? { offset: Number(offset.value) } : {}) };
    }

    async function scan() {
      if (running || !chosen) return;
      await page({ ...request(), limit: Math.max(1, Math.min(SHOWN, Number(limit.value) || 50)), want_cursor: true }, 1, 0);
    }

    // page requests page number of a scan and draws it; the pages before it had before rows.
    async function page(req, number, before) {
      if (running) return;
      const failed = (err) => (err.code === 'CURSOR_EXPIRED' ? expired(req, number, before) : trouble(err));
      await busy(async (signal) => {
        const began = performance.now();
        let first = null;
        let end = null;
        const rows = [];
        await lines('the scan', 'POST', indexPath(chosen.id, ':scan'), { raw: encode({ ...req, explain: true }), signal, online: (text) => {
          if (!text.trim()) return true;
          const l = parseExact(text);
          first ??= performance.now() - began;
          if (l.end || l.error) {
            end = l;
            return false;
          }
          rows.push(l);
          return rows.length <= SHOWN;
        } });
        const took = performance.now() - began;
        const lost = end && end.error && Object.assign(new Error(end.error.detail), { what: 'the scan', ...end.error });
        put(message, lost ? await failed(lost) : !end
          && el('div', { class: 'trouble' }, el('strong', {}, 'The scan was cut off'), el('p', {}, 'Rows are missing. What to do: scan again.')));
        if (lost && !rows.length) return;
        drawRows({ req, number, before }, rows, end, first, took);
      }, failed);
    }

    // expired offers ways to continue if the state of the previous pages is no longer kept.
    function expired(req, number, before) {
      return el('div', { class: 'trouble', role: 'alert' }, el('strong', {}, 'The state of the previous pages is no longer kept'),
        el('p', {}, 'It is kept for a minute after each page, and for ten minutes in total. What to do: continue after the last row in the newest state, or scan from the beginning.'),
        el('div', { class: 'row' }, button('Continue in the newest state', () => page({ ...req, newer: true }, number, before)), button('From the beginning', scan)));
    }

    async function tally() {
      if (running || !chosen) return;
      const req = request();
      await busy(async (signal) => {
        const began = performance.now();
        const r = await call('the count', 'POST', indexPath(chosen.id, ':count'), { raw: encode(req), signal, patience: 600000 });
        put(message);
        put(result, card('Count', el('p', { class: 'figure' }, req.aggregates ? many(r.count, 'group') : many(r.count, 'entry', 'entries')), dl([['took', duration(performance.now() - began)], ['timestamp', el('span', { class: 'mono' }, r.timestamp.id || r.timestamp.hash)]])));
      });
    }

    // busy runs an action that the user can cancel; failed returns the node for its error.
    async function busy(does, failed = trouble) {
      running = new AbortController();
      go.disabled = true;
      stop.disabled = false;
      put(message, el('p', { class: 'dim' }, 'Asking the indexers…'));
      try {
        await does(running.signal);
      } catch (err) {
        put(message, err.code === 'CANCELLED' ? el('p', {}, 'Cancelled: the indexers have ended the scan.') : await failed(err));
      } finally {
        running = null;
        go.disabled = false;
        stop.disabled = true;
      }
    }

    function drawRows({ req, number, before }, rows, end, first, took) {
      const keys = keysOf(chosen);
      const grouped = req.aggregates !== undefined;
      const heads = grouped ? [...(req.group_by || []).map((n) => keys[n].expr), ...req.aggregates.map((a) => nameOf(a, keys))]
        : [...keys.map((k) => k.expr), 'Document'];
      const cells = (r) => (grouped ? [...(r.key || []), ...r.values].map(show)
        : [...keys.map((k, n) => (n < r.key.length ? (r.key[n] === undefined ? 'MISSING' : show(r.key[n])) : '')), r.id]);
      const upTo = before + rows.length;
      const what = grouped ? 'group' : 'row';
      put(result, card(number === 1 ? many(rows.length, what) : `Page ${number}: ${rows.length ? `${what}s ${count(before + 1)} to ${count(upTo)}` : `no ${what}`}`, rows.length ? el('div', { class: 'scroll keep' }, el('table', { 'aria-label': 'Rows' },
        el('thead', {}, el('tr', {}, heads.map((h) => el('th', { scope: 'col' }, h)))),
        el('tbody', {}, rows.map((r) => el('tr', {}, cells(r).map((c) => el('td', { class: 'mono wrap' }, c)))))))
        : empty('No entry matches.', 'Widen the bounds, or choose "anything" for a component.'),
      next(req, number, upTo, end)),
      end && end.end && card('How it went', dl([[`${what}s`, count(end.rows)], ['timestamp', el('span', { class: 'mono' }, end.timestamp.id || end.timestamp.hash)],
        [`first ${what} after`, duration(first ?? took)], ['all after', `${duration(took)}, measured in this page`], ['request', el('code', { class: 'wrap' }, encode(req))],
        ['command line', el('code', { class: 'wrap' }, command(req))]]), explained(end.explain)));
    }

    // next returns what is shown below a page: a button for the next one, unless it is the last.
    function next(req, number, upTo, end) {
      if (!end || !end.more) return number > 1 && el('p', { class: 'dim' }, 'This is the last page.');
      if (!end.cursor) return el('p', {}, 'More rows follow, but the key of the last one is too long to continue after it: scan again with another limit.');
      const behind = { ...req, cursor: end.cursor, newer: undefined };
      return el('div', { class: 'row' }, button('Next page', () => page(behind, number + 1, upTo)),
        el('span', { class: 'dim' }, `The limit of ${req.limit} rows was reached. The next page shows the same state if it is requested within a minute; Count counts all rows.`));
    }

    // explained shows what each indexer did for the scan.
    function explained(e) {
      if (!e) return null;
      return [el('p', {}, `${duration(e.took_ms)} at the indexers: opening ${duration(e.opening_ms)}, waiting for a timestamp ${duration(e.waiting_ms)}, reading ${duration(e.reading_ms)}, sending ${duration(e.sending_ms)}.`),
        el('p', {}, `Timestamp: ${e.chosen}; ${age(e.age_ms)}.`),
        el('p', {}, `${e.slices} of ${e.of} slices may hold rows${e.left_out_why ? `: ${e.left_out_why}` : ''}.`),
        el('p', {}, `${many(e.read, 'entry', 'entries')} read, of which ${count(e.filtered)} did not meet the conditions.`),
        table([{ name: 'Indexer', cell: (p) => p.indexer }, { name: 'Slices', cell: (p) => p.slices.join(', ') },
          { name: 'Read', num: true, cell: (p) => count(p.read) }, { name: 'Filtered out', num: true, cell: (p) => count(p.filtered) },
          { name: 'Rows', num: true, cell: (p) => count(p.rows) }, { name: 'Opened in', num: true, cell: (p) => duration(p.opened_ms) },
          { name: 'Problem', cell: (p) => p.error || 'none' }], e.parts, { label: 'Requests to indexers' }),
        e.omitted > 0 && el('p', {}, `${many(e.omitted, 'further request')} not listed.`)];
    }

    // age describes the age of the timestamp when the request arrived.
    function age(ms) {
      if (ms === undefined) return 'its age is unknown';
      return ms < 0 ? `it was made ${duration(-ms)} after the request arrived` : `it was ${duration(ms)} old`;
    }

    // command returns the same scan as a command line.
    function command(req) {
      const q = (v) => `'${encode(v).replaceAll("'", "'\\''")}'`;
      const parts = ['tidemark index scan', `${keyspace(chosen)}/${chosen.name}`];
      if (req.equal) parts.push('--equal', q(req.equal));
      if (req.range && req.range.low) parts.push('--low', q(req.range.low));
      if (req.range && req.range.high) parts.push('--high', q(req.range.high));
      if (req.range && req.range.inclusion !== 'both') parts.push('--inclusion', req.range.inclusion);
      if (req.reverse) parts.push('--reverse');
      if (req.distinct) parts.push('--distinct');
      for (const n of req.group_by || []) parts.push('--group-by', q(new Exact(keysOf(chosen)[n].expr)));
      for (const a of req.aggregates || []) parts.push('--aggregate', q(new Exact(nameOf(a, keysOf(chosen)))));
      if (req.offset) parts.push('--offset', req.offset);
      parts.push('--limit', req.limit, '--consistency', req.consistency);
      if (req.cursor) parts.push('--cursor', req.cursor);
      if (req.newer) parts.push('--newer');
      return parts.join(' ');
    }

    return () => {
      start.abort('left');
      if (running) running.abort('left');
    };
  },
};
