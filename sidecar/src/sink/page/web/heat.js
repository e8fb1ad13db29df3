// Draws ranks by steps. Each cell compares a rank's self-time with that of its peers. If several cells share a pixel,
// the worst is shown.

const heat = {rows: [], columns: [], map: null, cursor: null, width: 0, height: 0, rowHeight: 1, image: null};

// A slow row among hundreds is also drawn on this many lines above and below its own. Otherwise it would not be
// visible.
const SPREAD = 1;
const SLOW = 133;

// Converts a ratio to a color. Lightness changes in one direction, so that the map is readable without colors too.
const STOPS = {
  light: [[0.6, [120, 170, 215]], [0.97, [226, 236, 243]], [1.03, [226, 236, 243]], [1.08, [247, 214, 136]], [1.25, [224, 122, 38]], [1.6, [170, 30, 26]], [3, [70, 8, 8]]],
  dark: [[0.6, [24, 62, 96]], [0.97, [30, 43, 53]], [1.03, [30, 43, 53]], [1.08, [104, 78, 20]], [1.25, [208, 126, 34]], [1.6, [255, 112, 98]], [3, [255, 226, 220]]],
};
const KEYS = [[0.8, '0.8×'], [1, 'as its peers'], [1.08, '1.08×'], [1.25, '1.25×'], [1.6, '1.6× and more']];

function isDark() {
  const theme = document.documentElement.dataset.theme;
  return theme ? theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
}

function shade(value) {
  const stops = STOPS[isDark() ? 'dark' : 'light'];
  const next = stops.findIndex(([stop]) => stop >= value);
  if (next === 0) return stops[0][1];
  if (next < 0) return stops.at(-1)[1];
  const [[low, from], [high, to]] = [stops[next - 1], stops[next]];
  const share = Math.log(value / low) / Math.log(high / low);
  return from.map((part, index) => Math.round(part + (to[index] - part) * share));
}

// One color for each cell, in the format of canvases. The last two are for the stripes of absent ranks.
const palettes = {};
function palette() {
  return palettes[isDark()] ??= madePalette();
}

function madePalette() {
  const pack = ([r, g, b]) => (255 << 24 | b << 16 | g << 8 | r) >>> 0;
  const made = new Uint32Array(258);
  for (let cell = 1; cell < 256; cell += 1) made[cell] = pack(shade(ratio(cell)));
  made[256] = pack(isDark() ? [88, 98, 106] : [120, 130, 138]);
  made[257] = pack(isDark() ? [17, 23, 28] : [255, 255, 255]);
  return made;
}

// How much longer than usual a step must be to count as a warm-up. At the start, caches fill and kernels are compiled.
const WARM = 1.2;

// Returns which steps are warm-ups: those that are reported as such, and the first steps after each start while they
// are longer than usual. Ranks that differ in these steps are not slow.
function warmUps(columns) {
  const medians = columns.map(step => step.p50).sort((a, b) => a - b);
  const usual = medians[Math.floor(medians.length / 2)];
  let warms = false;
  return columns.map((step, index) => {
    const before = columns[index - 1];
    const starts = before ? before.restart !== step.restart : data.steps.length < 512;
    warms = (starts || warms) && (step.kind === 'warm-up' || step.p50 >= WARM * usual);
    return warms || step.kind === 'warm-up';
  });
}

// Slow is worse than absent, and absent is worse than everything else. The aggregator groups ranks by the same order.
const badness = cell => cell === 0 ? 261 : cell * 2;

// Returns the rows that match the filter, as indices in the columns.
function rowsShown(columns) {
  const last = columns.at(-1);
  const all = Math.ceil(last.ranks / last.bin);
  const {text, rank} = query();
  const every = Array.from({length: all}, (_, row) => row);
  if (!text) return every;
  const rows = new Set();
  const add = number => number < last.ranks && rows.add(Math.floor(number / last.bin));
  if (rank !== null) add(rank);
  else {
    const nodes = data.places?.nodes.map(([name]) => name.toLowerCase().includes(text)) ?? [];
    data.places?.ranks.forEach(([node], number) => { if (nodes[node]) add(number); });
    (data.report?.verdicts ?? []).filter(concerns).forEach(verdict => ranksOf(verdict.subject).forEach(add));
  }
  return rows.size ? [...rows].sort((a, b) => a - b) : every;
}

function ranksOf(subject) {
  if (subject.kind === 'rank') return [subject.rank];
  if (!data.places || subject.node === undefined) return [];
  const node = data.places.nodes.findIndex(([name]) => name === subject.node);
  const only = subject.gpus ?? (subject.gpu ? [subject.gpu] : null);
  return data.places.ranks.flatMap(([place, own], rank) => place === node && (!only || own < 0 || only.includes(data.places.gpus[own][0])) ? [rank] : []);
}

// Returns functions that map columns to positions and positions to columns. The newest column is on the right.
function mapping(columns, width) {
  const wide = columns <= width ? Math.min(14, Math.floor(width / columns)) : width / columns;
  const left = Math.max(0, width - wide * columns);
  return {
    wide, left,
    x: index => left + index * wide,
    at: x => Math.floor((x - left) / wide),
  };
}

function drawHeat() {
  const columns = picture();
  if (columns.length === 0) return;
  const rows = rowsShown(columns);
  const most = Math.max(140, Math.min(320, innerHeight * 0.4));
  const rowHeight = Math.max(1, Math.min(22, Math.floor(most / rows.length)));
  const height = Math.min(Math.floor(most), rowHeight * rows.length);
  const {pen, width} = canvas('heat', height, false);
  const map = mapping(columns.length, width);
  Object.assign(heat, {rows, columns, map, width, height, rowHeight, warm: warmUps(columns)});
  if (heat.image?.width !== width || heat.image.height !== height) heat.image = pen.createImageData(width, height);
  const pixels = new Uint32Array(heat.image.data.buffer);
  pixels.fill(0);
  paint(pixels, width, height);
  pen.putImageData(heat.image, 0, 0);
  drawScale();
  drawRowNames(height);
  drawSays();
  drawCursor();
}

// Divides a line of pixels into spans of columns. Each has its start and end, and the worst cell of each line in it.
function spans(lines, width) {
  const {columns, map, rowHeight} = heat;
  const found = [];
  // Leave a line between cells that are large enough.
  const gap = map.wide >= 6 && rowHeight > 6 ? 1 : 0;
  let from = Math.max(0, map.at(0));
  for (let x = Math.ceil(map.left); x < width && from < columns.length;) {
    const to = map.wide >= 1 ? from + 1 : Math.max(from + 1, Math.min(columns.length, map.at(x + 1)));
    const end = map.wide >= 1 ? Math.min(width, Math.round(map.x(from + 1))) : x + 1;
    found.push({x, end: end - gap, isWarm: heat.warm[from], worst: worstLines(lines, from, Math.min(to, columns.length))});
    x = end;
    from = to;
  }
  return found;
}

// A cache of the worst lines. A step with pixels of its own looks the same while the same rows are shown, so only the
// newest step is processed.
const kept = {shown: '', of: new WeakMap()};
function worstLines(lines, from, to) {
  if (to - from > 1) return worstOf(lines, from, to);
  const step = heat.columns[from];
  const made = kept.of.get(step) ?? worstOf(lines, from, to);
  kept.of.set(step, made);
  return made;
}

function forgetOtherRows(lines) {
  const shown = `${lines} ${heat.rowHeight} ${heat.rows.join()}`;
  if (kept.shown !== shown) Object.assign(kept, {shown, of: new WeakMap()});
}

// Paints the worst cell of each line of pixels, column by column.
function paint(pixels, width, height) {
  const {rows, rowHeight} = heat;
  const colours = palette();
  const lines = rowHeight > 1 ? rows.length : height;
  forgetOtherRows(lines);
  const all = spans(lines, width);
  for (let y = 0; y < height; y += 1) {
    if (rowHeight > 6 && y % rowHeight === rowHeight - 1) continue;
    const line = rowHeight > 1 ? Math.floor(y / rowHeight) : y;
    for (const {x, end, isWarm, worst} of all) {
      const cell = worst[line];
      for (let own = x; own < end; own += 1) {
        if (isWarm && cell !== 0) {
          // Warm-up steps have stripes in the other direction.
          pixels[y * width + own] = colours[(own - y + height) % 6 < 2 ? 256 : 128];
          continue;
        }
        pixels[y * width + own] = cell === 0 ? colours[256 + ((own + y) % 6 < 3 ? 0 : 1)] : colours[cell];
      }
    }
  }
}

function worstOf(lines, from, to) {
  const {rows, columns} = heat;
  const worst = new Uint8Array(lines);
  const each = rows.length / lines;
  for (let line = 0; line < lines; line += 1) {
    let [found, bad] = [0, -1];
    const last = Math.max(Math.floor(line * each) + 1, Math.floor((line + 1) * each));
    for (let index = from; index < to; index += 1) {
      const {cells} = columns[index];
      for (let row = Math.floor(line * each); row < last; row += 1) {
        const cell = cells[rows[row]] ?? 0;
        const own = badness(cell);
        if (own > bad) [found, bad] = [cell, own];
      }
    }
    worst[line] = found;
  }
  if (heat.rowHeight > 2) return worst;
  for (let line = 0, before = worst[0]; line < lines; line += 1) {
    const own = worst[line];
    for (const other of [before, line + SPREAD < lines ? worst[line + SPREAD] : 0]) {
      if (other > SLOW && badness(other) > badness(worst[line])) worst[line] = other;
    }
    before = own;
  }
  return worst;
}

function drawScale() {
  const swatch = (rgb, text) => {
    const box = el('i');
    box.style.background = `rgb(${rgb.join(' ')})`;
    return el('span', null, box, text);
  };
  const stripes = el('i');
  stripes.style.background = `repeating-linear-gradient(135deg, ${isDark() ? '#58626a' : '#78828a'} 0 2px, transparent 2px 4px)`;
  const other = el('i');
  other.style.background = `repeating-linear-gradient(45deg, ${isDark() ? '#58626a' : '#78828a'} 0 2px, transparent 2px 6px)`;
  const what = heat.columns.at(-1).isSelf ? 'self-time' : 'whole steps (self-time is unknown)';
  fill('scale', `${what}:`, ...KEYS.map(([value, text]) => swatch(shade(value), text)), el('span', null, stripes, 'no data'),
    heat.warm.includes(true) ? el('span', null, other, 'warm-up') : '');
}

const firstRank = row => heat.rows[row] * heat.columns.at(-1).bin;

function drawRowNames(height) {
  const {rows} = heat;
  const y = row => (row + 0.5) * height / rows.length;
  const names = [];
  // Use a power of two, because nodes and grouped rows begin at such ranks.
  const apart = 2 ** Math.max(0, Math.ceil(Math.log2(rows.length / Math.max(1, Math.floor(height / 18)))));
  for (let row = 0; row < rows.length; row += apart) names.push([y(row), `${row === 0 ? 'rank ' : ''}${firstRank(row)}`]);
  const label = ([top, text], cls) => {
    const made = el('span', cls, told(text));
    made.style.top = `${Math.max(7, Math.min(height - 7, top))}px`;
    return made;
  };
  fill('rows', ...names.map(name => label(name)));
  // Put the ranks with findings beside their rows, as many as there is room for.
  const flags = [];
  const {bin} = heat.columns.at(-1);
  for (const verdict of raised()) {
    for (const rank of ranksOf(verdict.subject).slice(0, 8)) {
      const row = rows.indexOf(Math.floor(rank / bin));
      if (row >= 0 && flags.every(([top]) => Math.abs(top - y(row)) > 14)) flags.push([y(row), `${SEVERITY[verdict.severity].mark} rank ${rank}`]);
    }
  }
  fill('flags', ...flags.map(flag => label(flag, 'flag')));
}

// Describes a cell in words.
function cellSays(row, index) {
  const step = heat.columns[index];
  const place = heat.rows[row];
  if (!step || place === undefined) return null;
  const rank = place * step.bin + (step.who ? step.who[place] : 0);
  const isWarm = heat.warm[index];
  const kind = isWarm ? ' (warm-up)' : step.kind === 'train' ? '' : ` (${step.kind})`;
  const value = ratio(step.cells[place] ?? 0);
  const many = step.bin > 1 ? `of ranks ${place * step.bin} to ${Math.min(step.ranks, (place + 1) * step.bin) - 1} the worst: ` : '';
  const what = value === null ? 'no data' : `${times(value)} ${step.isSelf ? 'the self-time of its peers' : 'the median step'}`;
  return {rank, lines: [`${many}${rankName(rank)}`, `step ${step.step}${kind}: ${what}`]};
}

function drawSays() {
  const last = heat.columns.length - 1;
  const {cells} = heat.columns[last];
  let [slowest, missing] = [0, 0];
  heat.rows.forEach((place, row) => {
    if (cells[place] === 0) missing += 1;
    if (cells[place] > cells[heat.rows[slowest]]) slowest = row;
  });
  const worst = missing < heat.rows.length ? cellSays(slowest, last) : null;
  const {bin, ranks} = heat.columns[last];
  const text = [
    worst ? `Slowest in the last step: ${worst.lines[0]}, ${worst.lines[1].replace(/^step \d+/, match => match)}.` : '',
    missing ? `No data from ${count(missing, 'row')}.` : '',
    bin > 1 ? `${ranks.toLocaleString('en')} ranks, ${bin} to a row.` : '',
  ].join(' ');
  if (!heat.cursor) at('heat-says').textContent = text;
  at('heat').setAttribute('aria-label', `Heat map of ${count(ranks, 'rank')} by ${count(heat.columns.length, 'step')}. ${text} Arrow keys move, w goes to the slowest.`);
  const [first, newest] = [heat.columns[0], heat.columns[last]];
  fill('steps-axis', el('span', null, `step ${first.step}`), el('span', null, `step ${newest.step}`));
  at('steps-axis').style.paddingLeft = `${Math.floor(Math.min(heat.map.left, heat.width - 120))}px`;
}

function drawCursor() {
  const box = at('cursor');
  const {cursor, map, rows, height} = heat;
  box.hidden = !cursor || cursor.row >= rows.length;
  if (box.hidden) return;
  // The cursor stays on its step while columns move.
  const index = heat.columns.findIndex(step => step.step === cursor.step && step.restart === cursor.restart);
  if (index < 0) {
    heat.cursor = null;
    box.hidden = true;
    return;
  }
  const tall = height / rows.length;
  box.style.left = `${map.x(index) - 2}px`;
  box.style.top = `${cursor.row * tall - 2}px`;
  box.style.width = `${Math.max(6, map.wide + 4)}px`;
  box.style.height = `${Math.max(6, tall + 4)}px`;
  at('heat-says').textContent = cellSays(cursor.row, index).lines.join(', ');
}

function moveCursor(key) {
  const {rows, columns, cursor} = heat;
  if (columns.length === 0) return false;
  let index = cursor ? columns.findIndex(step => step.step === cursor.step && step.restart === cursor.restart) : columns.length - 1;
  let row = cursor?.row ?? 0;
  const page = Math.max(1, Math.floor(rows.length / 16));
  if (key === 'ArrowLeft') index -= 1;
  else if (key === 'ArrowRight') index += 1;
  else if (key === 'ArrowUp') row -= 1;
  else if (key === 'ArrowDown') row += 1;
  else if (key === 'PageUp') row -= page;
  else if (key === 'PageDown') row += page;
  else if (key === 'Home') index = 0;
  else if (key === 'End') index = columns.length - 1;
  else if (key === 'w') {
    index = columns.length - 1;
    const {cells} = columns[index];
    row = rows.reduce((best, place, own) => badness(cells[place]) > badness(cells[rows[best]]) ? own : best, 0);
  } else if (key === 'Escape') {
    heat.cursor = null;
    drawCursor();
    drawSays();
    return true;
  } else return false;
  index = Math.max(0, Math.min(columns.length - 1, index));
  row = Math.max(0, Math.min(rows.length - 1, row));
  heat.cursor = {row, step: columns[index].step, restart: columns[index].restart};
  drawCursor();
  return true;
}

function cellUnder(event) {
  const box = at('heat').getBoundingClientRect();
  if (!heat.map) return null;
  const index = heat.map.at(event.clientX - box.left);
  const cells = heat.columns[index]?.cells;
  const row = y => Math.floor((event.clientY - box.top + y) / heat.height * heat.rows.length);
  if (!cells || heat.rowHeight > 2) return cellSays(row(0), index);
  // Find the cell that is shown there, which is the worst of the rows on this line and on the lines beside it.
  let worst = Math.max(0, row(-SPREAD));
  for (let other = worst; other < Math.min(heat.rows.length, row(1 + SPREAD)); other += 1) {
    if (badness(cells[heat.rows[other]]) > badness(cells[heat.rows[worst]])) worst = other;
  }
  return cellSays(worst, index);
}

function listenToHeat() {
  const map = at('heat');
  map.addEventListener('pointermove', event => tip(event, cellUnder(event)?.lines));
  map.addEventListener('pointerleave', event => tip(event, null));
  map.addEventListener('click', event => {
    const cell = cellUnder(event);
    if (cell) setFilter(`rank ${cell.rank}`);
  });
  map.addEventListener('keydown', event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === 'Enter' && heat.cursor) {
      const index = heat.columns.findIndex(step => step.step === heat.cursor.step);
      const cell = index < 0 ? null : cellSays(heat.cursor.row, index);
      heat.cursor = null;
      if (cell) setFilter(`rank ${cell.rank}`);
    } else if (!moveCursor(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
  });
}
