// DDL as text: completion, dry run, execution, and the position of an error.

import { button, card, el, put, table, word } from '../lib/dom.js';
import { get, write } from '../lib/api.js';
import { bytes, count, many } from '../lib/format.js';
import { trouble } from '../lib/poll.js';
import { indexWord, keyspace } from '../lib/states.js';

const KEYWORDS = ['CREATE INDEX', 'CREATE PRIMARY INDEX', 'DROP INDEX', 'BUILD INDEX ON', 'ALTER INDEX', 'IF NOT EXISTS', 'IF EXISTS', 'ON', 'WHERE',
  'PARTITION BY HASH(', 'PARTITION BY RANGE(', 'VALUES (', 'WITH {"defer_build": true}', 'WITH {"num_replica": 1}', 'WITH {"num_partition": 6}', 'DESC', 'ASC', 'INCLUDE MISSING',
  'DISTINCT ARRAY', 'ARRAY', 'FOR', 'IN', 'END', 'AND', 'OR', 'NOT', 'IS VALUED', 'IS MISSING', 'IS NOT MISSING', 'IS NULL', 'IS NOT NULL', 'LIKE', 'BETWEEN', 'META().id', 'LOWER(', 'UPPER(', 'TRUE', 'FALSE'];
const MOST = 8;

const examples = ['CREATE INDEX by_name ON world(name)', 'CREATE INDEX by_country ON world(iso_country, name) WHERE kind = "airport"',
  'CREATE PRIMARY INDEX ids ON world WITH {"num_replica": 1}', 'DROP INDEX by_name ON world'];

// placeOf returns the index in text of the position in an error, "line 1, column 32"; null if it has none.
function placeOf(detail, text) {
  const m = /line (\d+), column (\d+)/.exec(detail || '');
  if (!m) return null;
  const rows = text.split('\n');
  const line = Number(m[1]);
  if (line < 1 || line > rows.length) return null;
  return rows.slice(0, line - 1).reduce((n, r) => n + r.length + 1, 0) + Math.min(Number(m[2]) - 1, rows[line - 1].length);
}

export const statements = {
  path: 'statements', title: 'Statements',
  show({ body, status, may }) {
    status.age.textContent = '';
    const ended = new AbortController();
    let words = [];
    let offered = [];
    let at = 0;
    const message = el('div', { 'aria-live': 'polite' });
    const text = el('textarea', { id: 'statement', rows: 5, spellcheck: 'false', autocapitalize: 'none', placeholder: examples[0], role: 'combobox',
      'aria-expanded': 'false', 'aria-controls': 'choices', 'aria-autocomplete': 'list', oninput: () => offer(2), onkeydown: keys, onblur: () => setTimeout(close, 150) });
    const list = el('ul', { class: 'choices', id: 'choices', role: 'listbox', hidden: true });
    const run = button('Run', go, { class: 'main', disabled: !may('ddl'), title: 'Ctrl+Enter' });
    const dry = button('Dry run', rehearse, { disabled: !may('ddl'), title: 'Shows what would be done, and where copies would be placed' });
    text.value = sessionStorage.getItem('statement') || '';
    put(body, card(null, el('label', { for: 'statement' }, 'One or more statements, separated by semicolons'), text, list,
      el('div', { class: 'row' }, run, dry, el('span', { class: 'dim' }, may('ddl') ? 'Ctrl+Enter runs, Ctrl+Space completes, Tab accepts a suggestion.'
        : 'You may only read; running statements needs role ddl. Ask an administrator: tidemark user passwd NAME --role ddl'))),
    message, card('Examples', examples.map((e) => el('div', {}, button(e, () => { text.value = e; text.focus(); }, { class: 'plain mono' })))));
    text.focus();

    get('listing the indexes', '/v1/indexes?limit=1000', { signal: ended.signal }).then((l) => {
      const exprs = l.indexes.flatMap((i) => (i.keys || []).map((k) => k.expr)).filter((e) => e.length < 40);
      const of = (values, kind) => [...new Set(values)].map((v) => ({ text: v, kind }));
      words = [...of(KEYWORDS, 'keyword'), ...of(l.indexes.map(keyspace), 'bucket or collection'), ...of(l.indexes.map((i) => i.name), 'index'), ...of(exprs, 'expression in use')];
    }, () => { words = KEYWORDS.map((k) => ({ text: k, kind: 'keyword' })); }); // only keywords are completed; statements still run

    // wordAt returns the word before the caret, which may be completed.
    function wordAt() {
      const before = text.value.slice(0, text.selectionStart);
      const m = /[\w.`]+$/.exec(before);
      return m ? m[0] : '';
    }

    function offer(least) {
      const w = wordAt().toLowerCase();
      offered = w.length < least ? [] : words.filter((x) => x.text.toLowerCase().startsWith(w) && x.text.toLowerCase() !== w).slice(0, MOST);
      at = 0;
      drawChoices();
    }

    function drawChoices() {
      list.hidden = !offered.length;
      text.setAttribute('aria-expanded', String(Boolean(offered.length)));
      if (offered.length) text.setAttribute('aria-activedescendant', `choice${at}`);
      else text.removeAttribute('aria-activedescendant');
      put(list, offered.map((o, i) => el('li', { role: 'option', id: `choice${i}`, 'aria-selected': String(i === at), onmousedown: (e) => { e.preventDefault(); at = i; take(); } },
        el('span', { class: 'mono' }, o.text), el('span', { class: 'dim' }, o.kind))));
    }

    function close() {
      offered = [];
      drawChoices();
    }

    function take() {
      const end = text.selectionStart;
      const from = end - wordAt().length;
      text.setRangeText(offered[at].text, from, end, 'end');
      close();
    }

    function keys(e) {
      if (e.ctrlKey && e.key === 'Enter') {
        e.preventDefault();
        close();
        go();
      } else if (e.ctrlKey && e.key === ' ') {
        e.preventDefault();
        offer(0);
      } else if (offered.length && (e.key === 'ArrowDown' || e.key === 'ArrowUp')) {
        e.preventDefault();
        at = (at + (e.key === 'ArrowDown' ? 1 : offered.length - 1)) % offered.length;
        drawChoices();
      } else if (offered.length && e.key === 'Tab') {
        e.preventDefault();
        take();
      } else if (offered.length && e.key === 'Escape') {
        e.stopPropagation();
        close();
      }
    }

    function go() {
      return send('/v1/statements', 'Running…', (r) => card('Done', table([
        { name: 'Index', cell: (x) => el('a', { href: `#/indexes?id=${x.id}` }, `${keyspace(x)}/${x.name}`) },
        { name: 'State', cell: (x) => [indexWord(x), x.existed && [' ', word('nothing to do', 'plain')]] },
        { name: 'Change', num: true, cell: (x) => `cas ${count(x.cas)}` },
        { name: 'Notices', cell: (x) => (x.notices || []).join('; ') || 'none' }], r.results, { label: 'Results' })));
    }

    function rehearse() {
      return send('/v1/statements?dry_run=true', 'Checking…', (r) => card(r.dry_run ? 'Nothing was done. The result would be' : 'The leader does not support dry runs: the statements HAVE BEEN RUN', table([
        { name: 'Index', cell: (x) => `${keyspace(x)}/${x.name}` },
        { name: 'State', cell: (x) => [x.state === 'dropping' && !x.existed ? 'dropped' : indexWord(x), x.existed && [' ', word('nothing to do', 'plain')]] },
        { name: 'Copies by indexer', cell: (x) => (x.places || []).map((p) => `${p.indexer}: ${p.copies.length}`).join(', ') || 'none' },
        { name: 'Moves', num: true, cell: (x) => count(x.moves || 0) },
        { name: 'Cost', cell: (x) => costs(x.cost) },
        { name: 'Notices', cell: (x) => (x.notices || []).join('; ') || 'none' }], r.results, { label: 'Result of the dry run' })));
    }

    // costs lists the estimates of a statement with their sources, and what cannot be estimated.
    function costs(c) {
      if (!c) return 'nothing';
      const estimate = (what, e, show = count) => e && el('p', {}, `${what}: ${e.bound.replace('_', ' ')} ${show(e.value)} `, el('span', { class: 'dim' }, `(${e.source})`));
      return [estimate('documents read from KV', c.documents), estimate('entries', c.entries), c.copies > 0 && el('p', {}, many(c.copies, 'copy', 'copies')),
        estimate('takes', c.bytes, bytes), estimate('frees', c.frees, bytes), (c.unknown || []).map((why) => el('p', {}, `Not known: ${why}.`))];
    }

    // send sends the statements and shows the answer, or the error with its position selected.
    async function send(path, meanwhile, show) {
      if (run.disabled) return;
      const statement = text.value;
      sessionStorage.setItem('statement', statement);
      run.disabled = dry.disabled = true;
      put(message, el('p', { class: 'dim' }, meanwhile));
      try {
        put(message, show(await write('the statement', 'POST', path, { statement }, { signal: ended.signal })));
      } catch (err) {
        if (err.code === 'CANCELLED') return;
        put(message, await trouble(err));
        const place = placeOf(err.detail, statement);
        if (place !== null) {
          text.focus();
          text.setSelectionRange(place, Math.min(place + 1, statement.length));
        }
      } finally {
        run.disabled = dry.disabled = !may('ddl');
      }
    }

    return () => ended.abort('left');
  },
};
