// Shows the most important finding: who is affected, why, since when, at what cost, and what to do. Without findings,
// says that all is well, but only as far as data was received.

const view = {selected: null, query: ''};

// Maximum number of findings to list: active ones, and ended ones.
const HOLDING = 12;
const OVER = 48;

// Parses the filter: either a rank, or text to find in names.
function query() {
  const text = view.query.trim().toLowerCase();
  const rank = /^(?:rank\s*|r)?(\d+)$/.exec(text);
  return {text, rank: rank ? Number(rank[1]) : null};
}

function concerns(verdict) {
  const {text, rank} = query();
  if (!text) return true;
  const {subject} = verdict;
  if (rank !== null) return subject.rank === rank || (subject.kind !== 'rank' && subject.node !== undefined && subject.node === nodeOf(rank));
  return [verdict.finding, verdict.cause, verdict.whom, subject.gpu ?? '', ...(subject.gpus ?? []), verdict.severity].some(word => word.toLowerCase().includes(text));
}

function since(verdict) {
  const began = verdict.since_step === null
    ? `${span(verdict.since_s)} after the start`
    : `step ${verdict.since_step} (${span(verdict.since_s)} after the start)`;
  const sure = verdict.raised_step !== null && verdict.raised_step > verdict.since_step
    ? `, confirmed ${count(verdict.raised_step - verdict.since_step, 'step')} later`
    : verdict.raised_s > verdict.since_s ? `, confirmed ${span(verdict.raised_s - verdict.since_s)} later` : '';
  const end = verdict.cleared_s === null
    ? `, ${ago(Math.max(0, data.report.duration_s - verdict.since_s))}`
    : `, over after ${span(verdict.cleared_s - verdict.since_s)}`;
  return began + end + sure;
}

function costs(verdict) {
  const parts = [];
  if (verdict.impact_words !== null && verdict.raised) parts.push(verdict.impact_words);
  parts.push(verdict.lost_gpu_hours > 0 ? `${hours(verdict.lost_gpu_hours, whose())} so far` : 'nothing so far');
  if (verdict.lost_cost !== null && verdict.lost_cost > 0) parts.push(`${verdict.lost_cost.toFixed(verdict.lost_cost < 1000 ? 2 : 0)} in money`);
  return parts.join('; ');
}

function mark(verdict) {
  const {mark, word} = verdict.raised ? SEVERITY[verdict.severity] : {mark: '○', word: 'OVER'};
  return `${mark} ${word}`;
}

function who(verdict) {
  const {subject} = verdict;
  if (subject.kind !== 'rank' && subject.kind !== 'gpu') return told(verdict.whom);
  const gpuName = subject.gpu ? [' · ', told(subject.gpu)] : [];
  const rank = subject.kind === 'rank' ? [`rank ${subject.rank} · `] : [];
  return el('span', null, ...rank, 'node ', told(subject.node), ...gpuName);
}

// Returns a short name of the subject. A rank is identified by its number; its GPU is shown in the details.
function shortWhom({subject, whom}) {
  if (subject.kind === 'rank') return `rank ${subject.rank} on ${subject.node}`;
  return subject.kind === 'gpu' ? `${shortGpu(subject.gpu)} on ${subject.node}` : whom;
}

// Turns commands between backticks into elements that a click selects completely.
function withCode(text) {
  const pieces = text.split('`');
  if (pieces.length % 2 === 0) return [told(text)];
  return pieces.map((piece, index) => index % 2 ? el('code', null, piece) : told(piece));
}

function caseOf(verdict) {
  const facts = el('dl');
  const fact = (term, ...says) => facts.append(el('dt', null, term), el('dd', term === 'Do' ? 'now' : null, ...says));
  fact('Who', who(verdict));
  fact('Since', since(verdict));
  const slower = verdict.slowdown === null ? [] : [el('b', null, `${times(verdict.slowdown)} as long as ${verdict.beside}`), ': '];
  // If no subject is slow and the cause is unknown, the sentence above already says all that is known.
  if (verdict.cause !== 'unknown' || verdict.slowdown !== null) fact('Why', ...slower, verdict.why);
  fact('Cost', costs(verdict));
  fact('Do', ...withCode(verdict.action));
  if (verdict.picture) fact('Note', verdict.picture);
  if (verdict.provenance !== 'live') fact('Note', `based on data that is not live (${verdict.provenance})`);
  if (verdict.observe_only) fact('Note', 'observed only, by policy: no alert is sent');
  const runbook = el('a', null, 'runbook');
  Object.assign(runbook, {href: verdict.runbook, target: '_blank', rel: 'noopener noreferrer'});
  fact('More', runbook, ', or ', el('code', null, `paceline explain ${verdict.finding}`));
  const proof = verdict.evidence.length ? table(['Evidence', 'here', verdict.reference], verdict.evidence) : null;
  return el('div', 'case', facts, proof);
}

function hero(verdict) {
  const head = el('h2', null, el('span', 'badge', mark(verdict)), el('span', null, told(verdict.finding), ': ', told(shortWhom(verdict))));
  const cls = verdict.raised ? verdict.severity : 'over';
  return el('div', `verdict ${cls}`, head, el('p', 'faint', told(verdict.title), '. ', told(verdict.means)), caseOf(verdict));
}

// Shows that there are no findings. Missing data is not health, so what was not observed is listed.
function calm() {
  const {report} = data;
  const seen = report.coverage;
  const over = report.findings > 0 ? ` ${count(report.findings, 'finding')} before, all ended.` : '';
  const say = (cls, badge, text) => el('div', `verdict ${cls}`, el('h2', null, el('span', 'badge', badge), text), over ? el('p', null, over) : null);
  if (seen.ranks_seen === 0) return say('warning', '?', 'No rank was observed yet: nothing is known about this job.');
  if (report.steps === 0) return say('warning', '?', `${count(seen.ranks_seen, 'rank')} attached, no step was observed yet: nothing is known about this job.`);
  if (seen.ranks_seen < seen.ranks_expected) {
    return say('warning', '?', `${seen.ranks_seen} of ${seen.ranks_expected} ranks observed: those are in step, the others are unknown.`);
  }
  if (seen.gaps > 0 || seen.notes.length > 0) return say('warning', '?', `No finding in the observed part of ${count(seen.ranks_seen, 'rank')}: the gaps are listed below.`);
  return say('ok', '✔', `All ${count(seen.ranks_seen, 'rank')} in step`);
}

function ending(end) {
  const where = [end.node === null ? '' : ` on ${end.node}`, end.rank === null ? '' : `, rank ${end.rank}`].join('');
  const cls = end.reason === 'success' ? 'ok' : 'critical';
  return el('div', `verdict ${cls}`, el('h2', null, el('span', 'badge', end.reason === 'success' ? '✔ ENDED' : '● ENDED'), told(`${end.reason}${where}`)), el('p', null, told(end.says)));
}

function drawAnswer() {
  const {report} = data;
  if (!report) return;
  const all = report.verdicts.filter(concerns);
  const holds = all.filter(verdict => verdict.raised);
  const first = all.find(verdict => verdict.id === view.selected) ?? holds[0];
  const none = query().text && report.verdicts.length > 0 && !first;
  fill('answer',
    report.end ? ending(report.end) : null,
    first ? hero(first) : null,
    none ? el('p', 'faint', 'No active finding matches the filter.') : null,
    !first && !none && !report.end ? calm() : null);
  // Announce a finding to screen readers once, and not with every new number.
  const news = first ? `${mark(first)} ${first.finding}: ${shortWhom(first)}` : at('answer').querySelector('h2')?.textContent ?? '';
  if (at('announce').textContent !== news) at('announce').textContent = news;
  drawOthers(all, first);
}

// Lists the active findings. Ended findings are in a collapsed list.
function drawOthers(all, first) {
  at('others').hidden = all.length < 2 && all[0] === first;
  if (at('others').hidden) return;
  const button = verdict => {
    const made = el('button', verdict.raised ? verdict.severity : 'over', el('span', 'badge', mark(verdict)), ' ', told(verdict.finding), ' ', told(shortWhom(verdict)));
    made.type = 'button';
    made.setAttribute('aria-current', String(verdict === first));
    made.dataset.finding = verdict.id;
    made.addEventListener('click', () => select(verdict.id));
    return el('li', null, made);
  };
  const more = left => left > 0 && !query().text ? el('p', 'faint', `and ${left} more in report.json`) : null;
  const holds = all.filter(verdict => verdict.raised);
  const over = all.filter(verdict => !verdict.raised);
  const open = at('over')?.open ?? false;
  // Keep the keyboard focus on the same finding.
  const held = document.activeElement?.dataset?.finding;
  const ended = data.report.findings - data.report.raised;
  const past = el('details', null, el('summary', 'faint', `${query().text ? over.length : ended} ended`), el('ol', null, ...over.slice(0, OVER).map(button)),
    more(ended - Math.min(over.length, OVER)));
  past.id = 'over';
  past.open = open;
  fill('others',
    el('div', 'head', el('h2', null, 'Findings'), el('p', 'legend', `${data.report.raised} active, ${ended} ended`)),
    el('ol', null, ...holds.slice(0, HOLDING).map(button)),
    more(data.report.raised - Math.min(holds.length, HOLDING)),
    over.length ? past : null);
  if (held) at('others').querySelector(`[data-finding="${held}"]`)?.focus();
}

function select(id) {
  view.selected = id;
  drawAnswer();
}

// Selects the next or the previous finding.
function walk(by) {
  const all = (data.report?.verdicts ?? []).filter(concerns);
  if (all.length === 0) return;
  const now = Math.max(0, all.findIndex(verdict => verdict.id === view.selected));
  select(all[(now + by + all.length) % all.length].id);
}

function drawHeader() {
  const {report} = data;
  if (!report) return;
  at('job').textContent = report.job || '(no name)';
  at('job').title = report.job;
  const last = data.steps.at(-1);
  const simulated = raised().some(verdict => verdict.provenance !== 'live') ? ' · not all data is live' : '';
  const nodes = data.places ? `${count(data.places.nodes.length, 'node')} · ` : '';
  const goodput = report.cost.goodput === null ? '' : ` · goodput ${percent(report.cost.goodput)}`;
  const lost = report.cost.lost_gpu_hours > 0 ? ` · ${hours(report.cost.lost_gpu_hours, whose())} lost` : '';
  const step = last ? last.step : report.steps;
  const median = report.median_s === null ? '' : ` of ${span(report.median_s)}`;
  at('facts').textContent = `${count(report.world, 'rank')} · ${nodes}step ${step.toLocaleString('en')}${median} · ${span(last ? Math.max(last.at_s, report.duration_s) : report.duration_s)}${goodput}${lost}${simulated}`;
  const worst = raised()[0];
  document.title = `${worst ? `${SEVERITY[worst.severity].mark} ${worst.finding}` : '✔'} · ${report.job.slice(0, 40)} · paceline`;
}
