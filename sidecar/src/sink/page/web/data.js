// The data received from the aggregator. `apply` takes either the whole state or updates; both have the same form.

const STEPS_KEPT = 1024;
const EVENTS_KEPT = 256;
const GPU_FIELDS = ['temperature', 'margin', 'clock', 'clockMax', 'power', 'limit', 'busy', 'uncorrected', 'corrected', 'bits'];
const UNKNOWN = 0xffff;
const GPU_BITS = ['slowed by heat', 'at its power cap', 'power brake', 'rows wait to be remapped', 'a row could not be remapped', 'cannot be read', 'PCIe lanes are missing', 'an NVLink is down'];
// A busy GPU is often at its power cap, so that bit is no sign of trouble.
const GPU_TROUBLE = 0xff & ~2;

const data = {
  epoch: '', serial: 0, steps: [], events: [], report: null, places: null, gpus: null, ports: null,
  stepAt: 0,
};

function bytes(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64);
  const made = new Uint8Array(text.length);
  for (let index = 0; index < text.length; index += 1) made[index] = text.charCodeAt(index);
  return made;
}

function column(row) {
  const [step, restart, kind, at_s, p50, p99, max, phases, ranks, bin, cells, who, isSelf] = row;
  return {step, restart, kind, at_s, p50, p99, max, phases, ranks, bin, cells: bytes(cells), who: who ? bytes(who) : null, isSelf};
}

// Applies received data. Returns which parts changed.
function apply(news) {
  const changed = new Set();
  if (news.epoch !== data.epoch) {
    // The data is from another aggregator. Keep what the previous one sent until this one replaces it.
    Object.assign(data, {epoch: news.epoch, serial: 0, steps: [], events: []});
    changed.add('steps').add('events');
  }
  data.serial = news.serial;
  for (const part of ['report', 'places', 'ports']) {
    if (news[part]) {
      data[part] = news[part];
      changed.add(part);
    }
  }
  if (news.gpus) {
    const packed = new DataView(bytes(news.gpus).buffer);
    data.gpus = new Uint16Array(packed.byteLength >> 1);
    for (let index = 0; index < data.gpus.length; index += 1) data.gpus[index] = packed.getUint16(index * 2, true);
    changed.add('gpus');
  }
  if (news.steps) {
    data.steps.push(...news.steps.map(column));
    data.steps.splice(0, Math.max(0, data.steps.length - STEPS_KEPT));
    changed.add('steps');
  }
  if (news.still_s !== undefined) data.stepAt = performance.now() - 1000 * news.still_s;
  if (news.events) {
    data.events.push(...news.events);
    data.events.splice(0, Math.max(0, data.events.length - EVENTS_KEPT));
    changed.add('events');
  }
  return changed;
}

// Returns the steps that can be compared with the last one, because they have as many ranks. A restart may be between
// them.
function picture() {
  const last = data.steps.at(-1);
  if (!last) return [];
  const most = last.ranks > 512 ? 512 : STEPS_KEPT;
  return data.steps.filter(step => step.ranks === last.ranks).slice(-most);
}

function nodeOf(rank) {
  const place = data.places?.ranks[rank]?.[0] ?? -1;
  return place < 0 ? null : data.places.nodes[place][0];
}

function gpuOf(rank) {
  const place = data.places?.ranks[rank]?.[1] ?? -1;
  return place < 0 ? null : place;
}

function rankName(rank) {
  const node = nodeOf(rank);
  const gpu = gpuOf(rank);
  return `rank ${rank}${node === null ? '' : ` on ${node}`}${gpu === null ? '' : ` (${shortGpu(data.places.gpus[gpu][0])})`}`;
}

// Returns the last readings of the GPU at an index, with null for missing ones. If `into` is given, they are written
// into that object, because creating objects for thousands of GPUs would take longer than reading the values.
function gpu(place, into) {
  const read = into ?? {};
  const start = place * GPU_FIELDS.length;
  for (let index = 0; index < GPU_FIELDS.length; index += 1) {
    const value = data.gpus?.[start + index] ?? UNKNOWN;
    read[GPU_FIELDS[index]] = value === UNKNOWN ? null : value;
  }
  if (read.margin !== null) read.margin -= 1000;
  if (read.busy !== null) read.busy /= 1000;
  return read;
}

function ratio(cell) {
  return cell === 0 ? null : Math.exp((cell - 128) / 64);
}

// Returns the findings that are active now.
function raised() {
  return (data.report?.verdicts ?? []).filter(verdict => verdict.raised);
}

// Returns whose time is counted: that of GPUs, or that of ranks if there are no GPUs.
function whose() {
  return data.places?.gpus.length ? 'GPU' : 'rank';
}
