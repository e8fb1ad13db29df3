// Draws nodes (those with findings first), GPUs as strips, and ports.

const fleet = {tiles: [], across: 1, size: 12};
const RANKED = {critical: 3, warning: 2, info: 1};

// Returns the worst active finding of each node.
function nodeFindings() {
  const worst = new Map();
  const add = (node, verdict) => {
    const known = worst.get(node);
    if (!known || RANKED[verdict.severity] > RANKED[known.severity]) worst.set(node, verdict);
  };
  for (const verdict of raised()) {
    const {subject} = verdict;
    if (subject.node !== undefined) add(subject.node, verdict);
    if (subject.peer) add(subject.peer, verdict);
    if (subject.rack) data.places?.nodes.forEach(([name, rack]) => { if (rack === subject.rack) add(name, verdict); });
  }
  return worst;
}

// The nodes by name, with their ranks. They are cached, because they change with the placement of ranks and not with
// every finding.
const byName = new Intl.Collator('en', {numeric: true});
const placed = {places: null, nodes: []};
function nodesByName() {
  const {places} = data;
  if (placed.places === places) return placed.nodes;
  const nodes = places.nodes.map(([name, rack]) => ({name, rack, from: Infinity, to: -1, count: 0, up: 0, verdict: undefined}));
  places.ranks.forEach(([node, , up], rank) => {
    if (node < 0) return;
    const own = nodes[node];
    own.from = Math.min(own.from, rank);
    own.to = rank;
    own.count += 1;
    if (up) own.up += 1;
  });
  nodes.sort((a, b) => byName.compare(a.name, b.name));
  Object.assign(placed, {places, nodes});
  return nodes;
}

function drawNodes() {
  if (!data.places) return;
  const worst = nodeFindings();
  const {text, rank} = query();
  const only = rank !== null ? nodeOf(rank) : null;
  const all = nodesByName();
  for (const node of all) node.verdict = worst.get(node.name);
  const order = text ? all.filter(node => rank !== null ? node.name === only : node.name.toLowerCase().includes(text) || node.rack.toLowerCase().includes(text) || (node.verdict && concerns(node.verdict))) : [...all];
  // Nodes without a finding keep their order by name.
  if (worst.size) order.sort((a, b) => (b.verdict ? RANKED[b.verdict.severity] : 0) - (a.verdict ? RANKED[a.verdict.severity] : 0));
  const bad = order.filter(node => node.verdict);
  fill('node-cards', ...bad.slice(0, 12).map(node => el('div', `card ${node.verdict.severity}`,
    el('b', null, `${SEVERITY[node.verdict.severity].mark} `, told(node.name)),
    told(node.verdict.finding), el('br'), el('span', 'faint', nodeRanks(node)))));
  const down = order.filter(node => node.count > 0 && node.up < node.count).length;
  at('nodes-says').textContent = `${count(order.length, 'node')}, ${bad.length} with findings${down ? `, ${down} with ranks that ended` : ''}`;
  drawTiles(order);
}

function nodeRanks(node) {
  const rack = node.rack ? `, rack ${node.rack}` : '';
  if (node.count === 0) return `no ranks${rack}`;
  const which = node.count === 1 ? `rank ${node.from}` : `ranks ${node.from} to ${node.to}`;
  return `${which}${node.up < node.count ? `, ${node.count - node.up} ended` : ''}${rack}`;
}

// Draws one tile per node. A finding is also shown by a shape, so that it is visible without colors.
function drawTiles(order) {
  const width = at('nodes').parentElement.clientWidth;
  const size = order.length > 1500 ? 9 : order.length > 400 ? 12 : 18;
  const across = Math.max(1, Math.floor(width / size));
  Object.assign(fleet, {tiles: order, across, size});
  const {pen} = canvas('nodes', Math.max(size, Math.ceil(order.length / across) * size), true);
  pen.clearRect(0, 0, pen.canvas.width, pen.canvas.height);
  const fills = {critical: colour('--bad'), warning: colour('--warn'), info: colour('--well')};
  const [well, ended, paper] = [colour('--well-bg'), colour('--line'), colour('--paper')];
  let dipped = null;
  const dip = own => { if (own !== dipped) pen.fillStyle = dipped = own; };
  order.forEach((node, index) => {
    const [x, y] = [index % across * size, Math.floor(index / across) * size];
    dip(node.verdict ? fills[node.verdict.severity] : node.count > 0 && node.up === 0 ? ended : well);
    pen.fillRect(x, y, size - 2, size - 2);
    if (!node.verdict) return;
    dip(paper);
    const inner = size - 2;
    if (node.verdict.severity === 'critical') pen.fillRect(x + inner / 2 - 1, y + 1, 2, inner - 2);
    pen.fillRect(x + 1, y + inner / 2 - 1, inner - 2, 2);
  });
  at('nodes').setAttribute('aria-label', `Nodes, the faulty first: ${at('nodes-says').textContent}`);
}

function listenToNodes() {
  const under = event => fleet.tiles[Math.floor(event.offsetY / fleet.size) * fleet.across + Math.floor(event.offsetX / fleet.size)];
  at('nodes').addEventListener('pointermove', event => {
    const node = under(event);
    tip(event, node ? [node.name, nodeRanks(node), node.verdict ? `${node.verdict.severity}: ${node.verdict.finding}` : 'no finding'] : null);
  });
  at('nodes').addEventListener('pointerleave', event => tip(event, null));
  at('nodes').addEventListener('click', event => { const node = under(event); if (node) setFilter(node.name); });
}

// The strips. Each has a name, the value that it shows, how bad that value is (0 to 1), and how the value is written.
const LANES = [
  ['temperature', read => read.temperature, read => read.margin === null ? (read.temperature - 60) / 30 : 1 - read.margin / 25, value => `${value} °C`],
  ['SM clock', read => read.clock, read => read.clockMax ? (1 - read.clock / read.clockMax) * 4 : 0, value => `${value} MHz`],
  ['power', read => read.power, read => read.limit ? (read.power / read.limit - 0.9) * 5 : 0, value => `${value} W`],
  ['in use', read => read.busy, read => (0.5 - read.busy) * 2, value => percent(value)],
  ['memory errors', read => read.uncorrected === null && read.corrected === null ? null : (read.uncorrected ?? 0) * 1000 + (read.corrected ?? 0), read => (read.uncorrected ?? 0) > 0 ? 1 : Math.min(0.6, (read.corrected ?? 0) / 100), null],
];

// Returns the value of each GPU for each strip and how bad it is, with NaN for missing readings. Also returns which
// GPUs are in trouble.
function readLanes(shown) {
  const lanes = LANES.map(() => ({values: new Float64Array(shown.length), bad: new Float32Array(shown.length)}));
  const troubled = [];
  const read = {};
  for (let index = 0; index < shown.length; index += 1) {
    gpu(shown[index], read);
    for (let lane = 0; lane < LANES.length; lane += 1) {
      const value = LANES[lane][1](read);
      lanes[lane].values[index] = value === null ? NaN : value;
      lanes[lane].bad[index] = value === null ? NaN : Math.max(0, Math.min(1, LANES[lane][2](read)));
    }
    if ((read.bits ?? 0) & GPU_TROUBLE || read.uncorrected > 0) troubled.push(shown[index]);
  }
  return {lanes, troubled};
}

function gpuSays(place) {
  const [uuid, node, bus, model] = data.places.gpus[place];
  const read = gpu(place);
  const parts = [
    read.temperature === null ? null : `${read.temperature} °C${read.margin === null ? '' : ` (${read.margin} left)`}`,
    read.clock === null ? null : `${read.clock} of ${read.clockMax ?? '?'} MHz`,
    read.power === null ? null : `${read.power} of ${read.limit ?? '?'} W`,
    read.busy === null ? null : `in use ${percent(read.busy)}`,
    read.uncorrected === null ? 'memory errors not read' : `${read.uncorrected} uncorrected and ${read.corrected ?? '?'} corrected memory errors since the start of monitoring`,
  ].filter(Boolean);
  const bits = gpuBits(read);
  const rank = data.places.ranks.findIndex(([, own]) => own === place);
  return [`${rank < 0 ? 'no rank' : `rank ${rank}`} on ${data.places.nodes[node]?.[0] ?? '?'}`, `${uuid} ${data.places.buses[bus]} ${data.places.models[model]}`, parts.join(', '), ...bits.length ? [bits.join(', ')] : []];
}

function gpuBits(read) {
  return GPU_BITS.filter((_, bit) => (read.bits ?? 0) >> bit & 1);
}

function gpusShown() {
  const {text, rank} = query();
  const all = data.places.gpus.map((_, place) => place);
  if (!text) return all;
  if (rank !== null) return all.filter(place => place === gpuOf(rank));
  const found = all.filter(place => {
    const [uuid, node] = data.places.gpus[place];
    return uuid.toLowerCase().includes(text) || (data.places.nodes[node]?.[0] ?? '').toLowerCase().includes(text);
  });
  return found.length ? found : all;
}

function drawGpus() {
  const {places} = data;
  if (!places) return;
  if (places.gpus.length === 0) {
    at('gpus-says').textContent = '';
    fill('gpus', el('p', 'faint', 'No GPU was read: there is none, no rank trains on one, or its driver does not answer.'));
    return;
  }
  if (!data.gpus) return;
  const shown = gpusShown();
  const {lanes: found, troubled} = readLanes(shown);
  const lanes = LANES.map((lane, index) => drawLane(lane, shown, found[index]));
  const list = troubled.slice(0, 8).map(place => {
    const read = gpu(place);
    const [who, name, values] = gpuSays(place);
    const what = [...gpuBits({bits: read.bits & GPU_TROUBLE}), ...read.uncorrected > 0 ? ['uncorrected memory errors'] : []].join(', ');
    return el('p', null, el('b', 'warning', '▲ '), told(`${who}: ${what}`), el('span', 'faint', ' ', told(`${name.split(' ')[0]}, ${values}`)));
  });
  if (troubled.length > 8) list.push(el('p', 'faint', `and ${troubled.length - 8} more`));
  at('gpus-says').textContent = `${count(shown.length, 'GPU')}, as their ranks go${places.models.length === 1 ? `, ${places.models[0]}` : ''}`;
  fill('gpus', ...lanes, ...list);
}

// Returns a strip's summary of all its GPUs.
function laneSays(values, tell) {
  let [low, high, uncorrected, corrected] = [Infinity, -Infinity, 0, 0];
  for (const value of values) {
    if (Number.isNaN(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
    uncorrected += value >= 1000 ? 1 : 0;
    corrected += value % 1000 > 0 ? 1 : 0;
  }
  if (high === -Infinity) return 'not read';
  if (tell === null) return high === 0 ? 'none' : `uncorrected on ${uncorrected}, corrected on ${corrected}`;
  return low === high ? tell(low) : `${tell(low).split(' ')[0]} to ${tell(high)}`;
}

function drawLane([name, , , tell], shown, {values, bad}) {
  const strip = el('canvas');
  strip.setAttribute('role', 'img');
  const says = laneSays(values, tell);
  strip.setAttribute('aria-label', `${name} of ${count(shown.length, 'GPU')}: ${says}`);
  const row = el('div', 'lane', el('span', null, name), el('div', null, strip), el('span', null, says));
  const width = Math.max(50, (at('gpus').clientWidth || 400) - 240);
  [strip.width, strip.height] = [width, 18];
  const pen = strip.getContext('2d');
  const at_ = x => Math.floor(x * shown.length / width);
  for (let x = 0; x < width; x += 1) {
    const [from, to] = [at_(x), at_(x + 1)];
    let worst = -1;
    for (let index = from; index < Math.max(from + 1, to); index += 1) worst = bad[index] > worst ? bad[index] : worst;
    // Bad values are dark (light in the dark scheme) and tall, so that they are visible without colors.
    pen.fillStyle = worst < 0 ? colourOf('--line') : strength(worst);
    const tall = worst < 0 ? 2 : 7 + 11 * worst;
    const gap = shown.length * 4 < width && from !== to ? 1 : 0;
    if (!gap) pen.fillRect(x, 18 - tall, 1, tall);
  }
  const place = event => shown[Math.floor(event.offsetX / strip.clientWidth * shown.length)];
  strip.addEventListener('pointermove', event => tip(event, place(event) === undefined ? null : gpuSays(place(event))));
  strip.addEventListener('pointerleave', event => tip(event, null));
  return row;
}

// A cache of colors, because looking up a color for each pixel takes longer than drawing the pixel.
const colours = {};
function colourOf(name) {
  const key = `${name} ${isDark()}`;
  return colours[key] ??= colour(name);
}

// Returns the color for how bad a value is, from 0 to 1. There are only as many colors as a viewer can distinguish.
const strengths = {};
function strength(share) {
  const own = strengths[isDark()] ??= Array.from({length: 65}, (_, step) => `rgb(${shade(1 + step / 64 * 0.6).join(' ')})`);
  return own[Math.round(share * 64)];
}

function drawFabric() {
  const links = raised().filter(verdict => ['slow-link', 'network-port', 'nvlink-errors', 'pcie-degraded'].includes(verdict.finding));
  const found = links.slice(0, 6).map(verdict => el('p', null, el('b', verdict.severity, `${mark(verdict)} `), told(verdict.finding), ' ', told(shortWhom(verdict))));
  const kinds = Object.entries(data.ports?.kinds ?? {}).map(([kind, [all, up]]) => `${up} of ${all} ${kind} ports up`);
  const {text} = query();
  const worst = (data.ports?.worst ?? []).filter(row => !text || row[0].toLowerCase().includes(text));
  const number = value => value === null ? '–' : value.toLocaleString('en');
  const rows = worst.slice(0, 12).map(([node, port, kind, up, rate, downs, errors, again]) =>
    [node, port, kind, up ? 'up' : '● DOWN', rate === null ? '–' : scaled(rate, 1000, ['bit/s', 'kbit/s', 'Mbit/s', 'Gbit/s', 'Tbit/s']), number(downs), number(errors), number(again)]);
  fill('fabric', ...found,
    el('p', 'faint', kinds.length ? `${kinds.join(', ')}; ${data.ports.troubled || 'none'} counted link losses, errors or retransmissions since the sidecar began.` : 'No port was read.'),
    rows.length ? table(['node', 'port', 'kind', 'state', 'rate', 'lost', 'errors', 'sent again'], rows) : null);
}
