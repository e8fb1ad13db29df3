// Numbers and names as a person would say them; the words are those of `paceline report`.

const SEVERITY = {
  critical: {mark: '●', word: 'CRITICAL'},
  warning: {mark: '▲', word: 'WARNING'},
  info: {mark: '•', word: 'INFO'},
};

const CAUSES = {
  'unknown': 'cause not seen',
  'thermal': 'heat: the GPU protects itself',
  'power': 'power: the GPU is capped or braked, its peers are not',
  'clock-stuck': 'clock: low without a reason on a cool GPU',
  'ecc': 'memory errors on the GPU',
  'pcie': 'PCIe: the link runs under its width or generation, or repeats itself',
  'nvlink': 'NVLink errors',
  'network': 'network: its ports count errors',
  'data-loading': 'data loading',
  'cpu-contention': 'CPU: the process waits for a core',
  'gc-pause': 'garbage collection',
  'imbalance': 'the work itself differs between ranks',
};

function span(seconds) {
  const s = Math.max(0, seconds);
  const two = number => String(Math.floor(number)).padStart(2, '0');
  if (s === 0) return '0 s';
  if (s < 1e-3) return `${(s * 1e6).toFixed(0)} µs`;
  if (s < 0.9995) return `${(s * 1e3).toFixed(1)} ms`;
  if (s < 60) return `${s.toFixed(1)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${two(s % 60)} s`;
  return `${Math.floor(s / 3600)} h ${two(s % 3600 / 60)} min`;
}

// How long ago, without digits that change all the time.
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

// Units at the end of a name, longer ones before those that they end in.
const UNITS = [
  ['_flop_per_s', value => scaled(value, 1000, ['FLOP/s', 'kFLOP/s', 'MFLOP/s', 'GFLOP/s', 'TFLOP/s', 'PFLOP/s'])],
  ['_bytes_per_s', value => scaled(value, 1000, ['B/s', 'kB/s', 'MB/s', 'GB/s', 'TB/s'])],
  ['_per_s', value => `${value.toFixed(value < 10 ? 2 : 0)}/s`],
  ['_ratio', percent],
  ['_bytes', value => scaled(value, 1024, ['B', 'KiB', 'MiB', 'GiB', 'TiB'])],
  ['_mhz', value => `${value.toFixed(0)} MHz`],
  ['_bps', value => scaled(value, 1000, ['bit/s', 'kbit/s', 'Mbit/s', 'Gbit/s', 'Tbit/s'])],
  ['_steps', String],
  ['_ns', value => span(value / 1e9)],
  ['_ms', value => span(value / 1e3)],
  ['_hours', value => span(value * 3600)],
  ['_s', span],
  ['_c', value => `${value.toFixed(0)} °C`],
  ['_w', value => `${value.toFixed(0)} W`],
  ['_x', times],
];

const LABELS = {
  self_time_s: 'self-time',
  wait_s: 'waits for others',
  unexplained_wait_s: 'waits for others',
  thermal_throttled_ratio: 'time slowed by heat',
  margin_c: 'thermal margin',
  silent_s: 'no move for',
  ranks_waiting: 'ranks that wait for it',
  process_gone: 'its process is gone',
  observe_only: 'only observed',
  low_coverage: 'fewer than 3 peers to compare with',
};

const SPELLED = {gemm: 'GEMM', sm: 'SM', gpu: 'GPU', cpu: 'CPU', pcie: 'PCIe', nvlink: 'NVLink', ecc: 'ECC', crc: 'CRC', xid: 'XID', nic: 'NIC', gc: 'garbage collection'};
const FACTS = new Set(['process_gone', 'observe_only', 'low_coverage']);

// One piece of evidence: what, the value here, the value of the peers.
function evidence([what, value, peers]) {
  const unit = UNITS.find(([end]) => what.endsWith(end));
  const tell = unit ? unit[1] : number => String(Math.round(number * 1000) / 1000);
  const bare = unit ? what.slice(0, -unit[0].length) : what;
  const label = Object.hasOwn(LABELS, what) ? LABELS[what]
    : bare.split('_').map(word => Object.hasOwn(SPELLED, word) ? SPELLED[word] : word).join(' ');
  if (FACTS.has(what)) return [label, '', ''];
  return [label, tell(value), peers === null ? '' : tell(peers)];
}

function clock(unixMs) {
  return new Date(unixMs).toLocaleTimeString('en-GB');
}

// A UUID's first letters are enough to tell two GPUs of a node apart.
function shortGpu(uuid) {
  return uuid.length > 13 ? `${uuid.slice(0, 12)}…` : uuid;
}
