// Draws how long steps take and where their time goes. It is below the heat map and shares its axis of steps.

// Names and colors are those of the report's page, in both color schemes, so that a reader of one understands the
// other.
const PHASES = ['data loading', 'compute', 'waiting and communication', 'optimizer', 'checkpoint', 'rest'];
const PHASE_COLOURS = {
  light: ['#b07aa1', '#4e79a7', '#e0953a', '#7a9e4f', '#8a8f98', '#dde3e9'],
  dark: ['#b07aa1', '#4e79a7', '#e0953a', '#7a9e4f', '#8a8f98', '#2b363f'],
};

function drawBand() {
  const {columns} = heat;
  if (columns.length === 0) return;
  const {pen, width, height} = canvas('band', 84, true);
  const map = mapping(columns.length, width);
  const medians = columns.map(step => step.p50).sort((a, b) => a - b);
  const usual = medians[Math.floor(medians.length / 2)];
  // One long step must not flatten all others, so the scale is limited. Values beyond it are marked at the top.
  const top = Math.min(Math.max(...columns.map(step => step.max)), usual * 2) * 1.1;
  const y = seconds => height - Math.min(1, seconds / top) * (height - 4);
  const x = index => map.x(index) + map.wide / 2;
  pen.clearRect(0, 0, width, height);
  pen.beginPath();
  columns.forEach((step, index) => pen.lineTo(x(index), y(step.p50)));
  for (let index = columns.length - 1; index >= 0; index -= 1) pen.lineTo(x(index), y(columns[index].p99));
  pen.closePath();
  pen.fillStyle = colour('--well-bg');
  pen.fill();
  const line = (pick, style, dash, thick) => {
    pen.beginPath();
    columns.forEach((step, index) => pen.lineTo(x(index), y(pick(step))));
    pen.strokeStyle = style;
    pen.lineWidth = thick;
    pen.setLineDash(dash);
    pen.stroke();
  };
  line(step => step.max, colour('--faint'), [2, 2], 1);
  line(step => step.p99, colour('--warn'), [6, 3], 1.2);
  line(step => step.p50, colour('--well'), [], 2);
  pen.setLineDash([]);
  pen.fillStyle = colour('--bad');
  pen.font = '10px system-ui';
  pen.textAlign = 'center';
  columns.forEach((step, index) => { if (step.max > top) pen.fillText('▲', x(index), 9); });
  const last = columns.at(-1);
  fill('band-legend', `p50 ━ ${span(last.p50)}`, el('span', null, `p99 ╌ ${span(last.p99)}`), el('span', null, `longest ┈ ${span(last.max)}`));
  at('band').setAttribute('aria-label', `Step time over ${count(columns.length, 'step')}: median ${span(last.p50)}, 99th percentile ${span(last.p99)}, longest ${span(last.max)} in the last step`);
  const labels = [[4, span(top)], [height - 6, '0']].map(([place, text]) => {
    const made = el('span', null, text);
    made.style.top = `${place}px`;
    return made;
  });
  fill('band-axis', ...labels);
}

function drawPhases() {
  const {columns} = heat;
  if (columns.length === 0) return;
  const {pen, width, height} = canvas('phases', 44, true);
  const map = mapping(columns.length, width);
  const colours = PHASE_COLOURS[isDark() ? 'dark' : 'light'];
  pen.clearRect(0, 0, width, height);
  columns.forEach((step, index) => {
    let from = 0;
    shares(step)?.forEach((share, phase) => {
      pen.fillStyle = colours[phase];
      pen.fillRect(map.x(index), height - (from + share) * height, Math.max(1, map.wide - (map.wide >= 6 ? 1 : 0)), share * height);
      from += share;
    });
  });
  const told = columns.findLast(step => step.phases);
  const last = told ? shares(told) : null;
  const entries = last?.map((share, phase) => {
    const box = el('i');
    box.style.background = colours[phase];
    return share >= 0.0005 ? el('span', null, box, `${PHASES[phase]} ${percent(share)}`) : null;
  }) ?? ['No phases: no hook runs in the trainers.'];
  fill('phase-legend', ...entries);
  at('phases').setAttribute('aria-label', last ? `Shares of the last step: ${last.map((share, phase) => `${PHASES[phase]} ${percent(share)}`).join(', ')}` : 'no phases');
}

// Returns the shares of a step, as means over the ranks. They add up to one.
function shares(step) {
  if (!step.phases) return null;
  const sum = step.phases.reduce((all, one) => all + one, 0);
  const whole = Math.max(sum, step.p50, 1e-9);
  return [...step.phases, whole - sum].map(part => part / whole);
}

function listenToBand() {
  const under = event => {
    const step = heat.map && heat.columns[heat.map.at(event.offsetX)];
    if (!step) return null;
    const parts = shares(step)?.map((share, phase) => `${PHASES[phase]} ${percent(share)}`).filter(text => !text.endsWith(' 0 %'));
    return [`step ${step.step}${step.kind === 'train' ? '' : ` (${step.kind})`}`, `p50 ${span(step.p50)}, p99 ${span(step.p99)}, longest ${span(step.max)}`, parts?.join(', ') ?? 'phases not known'];
  };
  for (const id of ['band', 'phases']) {
    at(id).addEventListener('pointermove', event => tip(event, under(event)));
    at(id).addEventListener('pointerleave', event => tip(event, null));
  }
}
