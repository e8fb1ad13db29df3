// Requests data from the aggregator, draws what has changed, and handles keys.

const DRAWN_BY = [
  [drawHeader, ['report', 'places', 'steps']],
  [drawAnswer, ['report', 'places', 'filter']],
  [drawHeat, ['steps', 'report', 'places', 'filter', 'size']],
  [drawBand, ['steps', 'filter', 'size']],
  [drawPhases, ['steps', 'filter', 'size']],
  [drawNodes, ['report', 'places', 'filter', 'size']],
  [drawGpus, ['gpus', 'places', 'filter', 'size']],
  [drawFabric, ['ports', 'report', 'filter']],
  [drawTimeline, ['events', 'report', 'filter']],
  [drawPreflight, ['report']],
  [drawCoverage, ['report']],
];

// The functions that still have to draw. They run in the order of `DRAWN_BY`.
const waiting = new Set();
const state = {failures: 0, answered: 0};
// Maximum time that drawing may take from one frame, milliseconds. The rest is drawn in the next frame.
const TURN_MS = 8;
let frame = 0;

// Draws the parts that depend on the changed data, before the next frames.
function draw(changed) {
  const parts = new Set(changed);
  for (const [drawer, needs] of DRAWN_BY) if (needs.some(part => parts.has(part))) waiting.add(drawer);
  frame ||= requestAnimationFrame(drawSome);
}

function drawSome() {
  const began = performance.now();
  for (const [drawer] of DRAWN_BY) {
    if (waiting.delete(drawer)) drawer();
    if (performance.now() - began > TURN_MS) break;
  }
  const took = performance.now() - began;
  frame = waiting.size ? requestAnimationFrame(drawSome) : 0;
  document.body.dataset.drawMs = took.toFixed(1);
  document.body.dataset.draws = Number(document.body.dataset.draws ?? 0) + 1;
  if (data.steps.length) document.body.dataset.firstDrawMs ??= performance.now().toFixed(0);
  at('drawn').textContent = `drawn in ${took.toFixed(0)} ms`;
}

function headers() {
  const token = sessionStorage.getItem('paceline-token');
  const made = {'Last-Event-ID': `${data.epoch}-${data.serial}`};
  if (token) made.Authorization = `Bearer ${token}`;
  return made;
}

const pause = ms => new Promise(resolve => setTimeout(resolve, ms));

// Parses the events of one answer. Each is a whole JSON text.
function events(text) {
  return text.split('\n').filter(line => line.startsWith('data: ')).map(line => JSON.parse(line.slice(6)));
}

// Requests data and applies it. The first request returns the whole state at once; later ones wait for updates.
async function ask(url) {
  const answer = await fetch(url, {headers: headers(), cache: 'no-store'});
  if (answer.status === 401) {
    sessionStorage.removeItem('paceline-token');
    await token();
    return;
  }
  if (!answer.ok) throw new Error(`${answer.status}`);
  const text = await answer.text();
  const began = performance.now();
  const changed = new Set();
  const news = answer.headers.get('content-type') === 'application/json' ? [JSON.parse(text)] : events(text);
  for (const one of news) apply(one).forEach(part => changed.add(part));
  Object.assign(state, {failures: 0, answered: performance.now()});
  document.body.dataset.applyMs = (performance.now() - began).toFixed(1);
  draw(changed);
  watch();
}

async function follow() {
  for (;;) {
    try {
      await ask(data.epoch ? 'v1/live/events' : 'v1/live');
      // A hidden page is updated less often.
      await pause(document.hidden ? 2000 : 100);
    } catch {
      state.failures += 1;
      await pause(Math.min(5000, 250 * 2 ** state.failures));
    }
  }
}

// Asks for the token. Resolves when the user has entered one.
function token() {
  const door = at('door');
  door.hidden = false;
  at('token').focus();
  return new Promise(resolve => {
    door.addEventListener('submit', event => {
      event.preventDefault();
      sessionStorage.setItem('paceline-token', at('token').value.trim());
      at('token').value = '';
      door.hidden = true;
      resolve();
    }, {once: true});
  });
}

// Shows if the aggregator or the job makes no progress. Called once a second and after all updates.
function watch() {
  const now = performance.now();
  const line = at('link');
  const quiet = (now - state.answered) / 1000;
  let text = '';
  if (state.failures > 1 && state.answered > 0) {
    text = data.report?.end
      ? `The job has ended, and its aggregator with it. This is its last data; the report is in ${data.report.dir}.`
      : `No answer from the aggregator, the last one ${ago(quiet)}: it ended with its job, or moved. The page shows the state of that time${data.report ? `; the report is in ${data.report.dir}` : ''}.`;
  } else if (state.failures > 1) text = 'No answer from the aggregator.';
  else if (data.steps.length > 1 && !data.report?.end) {
    const still = (now - data.stepAt) / 1000;
    const usual = data.report?.median_s ?? 1;
    if (still > Math.max(5, usual * 5)) text = `No step was finished by all ranks for ${ago(still).replace(' ago', '')} (a step usually takes ${span(usual)}).`;
  }
  if (line.textContent !== text) line.textContent = text;
}

function setFilter(text) {
  view.query = text;
  at('filter').value = text;
  heat.cursor = null;
  draw(['filter']);
}

const THEMES = {auto: 'Auto', light: 'Light', dark: 'Dark'};

function theme(next) {
  const root = document.documentElement;
  if (next === 'auto') delete root.dataset.theme;
  else root.dataset.theme = next;
  at('theme').textContent = THEMES[next];
  try { localStorage.setItem('paceline-theme', next); } catch { /* The browser stores nothing. */ }
  draw(['report', 'places', 'steps', 'gpus', 'filter']);
}

function nextTheme() {
  const names = Object.keys(THEMES);
  const now = document.documentElement.dataset.theme ?? 'auto';
  theme(names[(names.indexOf(now) + 1) % names.length]);
}

function showKeys() {
  const keys = at('keys');
  keys.hidden = !keys.hidden;
  at('help').setAttribute('aria-expanded', String(!keys.hidden));
}

const KEYED = {
  '/': () => at('filter').focus(),
  't': nextTheme,
  'n': () => walk(1),
  'p': () => walk(-1),
  'h': () => at('heat').focus(),
  '?': showKeys,
  'Escape': () => setFilter(''),
};

function listen() {
  at('filter').addEventListener('input', () => setFilter(at('filter').value));
  at('filter').addEventListener('keydown', event => {
    if (event.key === 'Escape') {
      setFilter('');
      at('filter').blur();
    }
    event.stopPropagation();
  });
  at('theme').addEventListener('click', nextTheme);
  at('help').addEventListener('click', showKeys);
  document.addEventListener('keydown', event => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches?.('input, textarea')) return;
    const act = Object.hasOwn(KEYED, event.key) ? KEYED[event.key] : null;
    if (!act) return;
    event.preventDefault();
    act();
  });
  addEventListener('resize', () => draw(['size']));
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => draw(['steps', 'gpus', 'places']));
  listenToHeat();
  listenToBand();
  listenToNodes();
  setInterval(watch, 1000);
}

let chosen = 'auto';
try { chosen = localStorage.getItem('paceline-theme') ?? 'auto'; } catch { /* The browser stores nothing. */ }
theme(Object.hasOwn(THEMES, chosen) ? chosen : 'auto');
listen();
follow();
