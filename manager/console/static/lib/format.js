// Formats of figures with their units.

const grouped = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });
const clock = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit', second: '2-digit', hour12: false });
const day = new Intl.DateTimeFormat(undefined, { year: 'numeric', month: '2-digit', day: '2-digit', hour: '2-digit',
  minute: '2-digit', second: '2-digit', hour12: false });

export const count = (n) => (Number.isFinite(n) ? grouped.format(n) : '–');

// many formats a number with its noun: "1 slice", "3 slices".
export const many = (n, one, more) => `${count(n)} ${n === 1 ? one : more || `${one}s`}`;

export function bytes(n) {
  if (!Number.isFinite(n)) return '–';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let i = 0;
  for (; n >= 1024 && i < units.length - 1; i++) n /= 1024;
  return `${i && n < 100 ? n.toFixed(1) : Math.round(n)} ${units[i]}`;
}

// duration formats milliseconds with at most two units.
export function duration(ms) {
  if (!Number.isFinite(ms)) return '–';
  if (ms < 1) return `${Math.round(ms * 1000)} µs`;
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 60) return `${s < 10 ? s.toFixed(1) : Math.round(s)} s`;
  const m = Math.round(s / 60);
  if (m < 60) return s < 600 ? `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s` : `${m} min`;
  const h = Math.floor(m / 60);
  if (h < 48) return `${h} h ${m % 60} min`;
  return `${Math.floor(h / 24)} d ${h % 24} h`;
}

export const nanos = (ns) => duration(ns / 1e6);
export const ago = (ms, now = Date.now()) => (ms ? `${duration(Math.max(0, now - ms))} ago` : 'never');
export const time = (ms) => (ms ? clock.format(ms) : '–');
export const date = (ms) => (ms ? day.format(ms) : '–');

export function rate(n, unit) {
  if (!Number.isFinite(n)) return '–';
  return `${n < 10 ? n.toFixed(1) : count(n)} ${unit}/s`;
}

export const percent = (n) => (n > 0 && n < 10 ? `${n.toFixed(1)} %` : `${Math.floor(n)} %`);
