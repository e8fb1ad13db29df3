// Converts numbers and names to words. The words are those of `paceline report`.

const SEVERITY = {
  critical: {mark: '●', word: 'CRITICAL'},
  warning: {mark: '▲', word: 'WARNING'},
  info: {mark: '•', word: 'INFO'},
};

function span(seconds) {
  const s = Math.max(0, seconds);
  const two = number => String(Math.floor(number)).padStart(2, '0');
  if (s === 0) return '0 s';
  if (s < 1e-3) return `${(s * 1e6).toFixed(0)} µs`;
  if (s < 0.9995) return `${(s * 1e3).toFixed(1)} ms`;
  if (s < 9.995) return `${s.toFixed(2)} s`;
  if (s < 60) return `${s.toFixed(1)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${two(s % 60)} s`;
  return `${Math.floor(s / 3600)} h ${two(s % 3600 / 60)} min`;
}

// Returns how long ago an event was, rounded so that the digits do not change all the time.
function ago(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  return `${(seconds / 3600).toFixed(1)} h ago`;
}

function percent(ratio) {
  const value = ratio * 100;
  return `${value.toFixed(value !== 0 && Math.abs(value) < 9.95 ? 1 : 0)} %`;
}

function count(n, noun) {
  return `${n.toLocaleString('en')} ${noun}${n === 1 ? '' : 's'}`;
}

function hours(hours, whose) {
  return hours < 0.05 ? `${(hours * 3600).toFixed(1)} ${whose}-seconds` : `${hours.toFixed(2)} ${whose}-hours`;
}

function times(ratio) {
  return `${ratio.toFixed(2)}×`;
}

function scaled(value, step, units) {
  let unit = 0;
  while (value >= step && unit + 1 < units.length) {
    value /= step;
    unit += 1;
  }
  return `${value.toFixed(unit > 0 && value < 100 ? 1 : 0)} ${units[unit]}`;
}

// Returns date and time of day in the browser's time zone, which is shown above the list.
function moment(unixMs) {
  const at = new Date(unixMs);
  const two = number => String(number).padStart(2, '0');
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

function zone() {
  const {timeZone} = Intl.DateTimeFormat().resolvedOptions();
  const minutes = -new Date().getTimezoneOffset();
  const two = number => String(number).padStart(2, '0');
  const offset = `UTC${minutes < 0 ? '-' : '+'}${two(Math.floor(Math.abs(minutes) / 60))}:${two(Math.abs(minutes) % 60)}`;
  return timeZone ? `${timeZone} (${offset})` : offset;
}

// The first letters of a UUID are enough to distinguish the GPUs of a node.
function shortGpu(uuid) {
  return uuid.length > 13 ? `${uuid.slice(0, 12)}…` : uuid;
}
