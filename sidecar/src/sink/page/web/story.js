// Shows the timeline, the results of a preflight, and what was not observed.

// Returns findings and other events by time, on the aggregator's wall clock.
function happenings() {
  const {report} = data;
  const found = [];
  if (report) {
    const wall = seconds => report.unix_ms - (report.duration_s - seconds) * 1000;
    for (const verdict of report.verdicts.filter(concerns)) {
      const what = [told(verdict.finding), ': ', told(shortWhom(verdict))];
      found.push({unix_ms: wall(verdict.raised_s), kind: `${SEVERITY[verdict.severity].mark} ${verdict.severity}`, cls: verdict.severity, what});
      if (verdict.cleared_s !== null) found.push({unix_ms: wall(verdict.cleared_s), kind: '○ over', cls: '', what: what.map(part => part instanceof Node ? part.cloneNode(true) : part)});
    }
  }
  const {text, rank} = query();
  const node = rank === null ? null : nodeOf(rank);
  for (const event of data.events) {
    const fits = !text || (rank !== null ? event.rank === rank || event.node === node : [event.node, event.kind, event.text].some(word => word.toLowerCase().includes(text)));
    if (!fits) continue;
    const where = [told(event.node), event.rank === null ? '' : ` rank ${event.rank}`, ': ', told(event.text), event.provenance ? ` (${event.provenance})` : ''];
    found.push({unix_ms: event.unix_ms, kind: event.kind, cls: event.kind === 'fault' || event.kind === 'trouble' ? 'critical' : '', what: where});
  }
  return found.sort((a, b) => b.unix_ms - a.unix_ms);
}

function drawTimeline() {
  const all = happenings();
  const rows = all.slice(0, 60).map(({unix_ms, kind, cls, what}) => el('li', null, el('time', 'faint', moment(unix_ms)), el('b', cls, kind), el('span', null, ...what)));
  at('zone').textContent = `times in ${zone()}`;
  fill('timeline', ...rows, all.length === 0 ? el('li', 'faint', 'Nothing yet.') : null);
}

const METRICS = {
  gemm: 'GPU matrix multiplication', gpu_memory: 'GPU memory', host_to_device: 'host to device', device_to_host: 'device to host',
  cpu_gemm: 'CPU matrix multiplication', cpu_memory: 'CPU memory', local_busbw: 'all-reduce in a node', local_busbw_host: 'all-reduce in a node (host)',
  pair_busbw: 'all-reduce of two nodes', pair_latency: 'round trip', pair_loss: 'retransmitted segments', all_busbw: 'all-reduce of all',
};

function drawPreflight() {
  const {report} = data;
  if (!report) return;
  const {preflight} = report;
  if (!preflight) return fill('preflight', el('p', 'faint', 'No preflight was run before this job.'));
  if (!preflight.mode) return fill('preflight', el('p', null, 'It failed: the job started without it.'));
  const good = preflight.outcome === 'ok';
  const line = el('p', null, el('b', good ? '' : preflight.outcome === 'critical' ? 'critical' : 'warning', good ? '✔ ok' : `▲ ${preflight.outcome}`),
    ` ${preflight.simulated ? 'SIMULATED, ' : ''}${told(preflight.mode).textContent}, ${count(preflight.nodes, 'node')}, ${count(preflight.gpus, 'GPU')}, ${span(preflight.seconds)}, ${count(preflight.comparisons, 'comparison')} with peers, limits and history`);
  const values = Object.entries(preflight.values).map(([metric, value]) => [METRICS[metric] ?? metric.replaceAll('_', ' '), /busbw|memory|device/.test(metric) ? scaled(value, 1000, ['B/s', 'kB/s', 'MB/s', 'GB/s', 'TB/s']) : /latency/.test(metric) ? span(value) : /gemm/.test(metric) ? scaled(value, 1000, ['FLOP/s', 'kFLOP/s', 'MFLOP/s', 'GFLOP/s', 'TFLOP/s', 'PFLOP/s']) : String(value)]);
  const notes = [
    ...preflight.left_out.map(([node, why]) => `${node} was excluded: ${why}`),
    ...preflight.findings.map(noted => `${noted.severity}: ${noted.says} ${noted.advice}`),
    ...preflight.problems.map(([node, what, phase]) => `${node === null ? '' : `${node}: `}${what} (${phase})`),
  ];
  fill('preflight', line, values.length ? table(['all nodes together', 'reached'], values) : null, ...notes.slice(0, 12).map(note => el('p', null, told(note))));
}

function drawCoverage() {
  const {report} = data;
  if (!report) return;
  const seen = report.coverage;
  const steps = seen.steps_ratio === null ? '' : `, ${Math.floor(seen.steps_ratio * 100)} % of their steps`;
  const lost = Object.entries(seen.lost).filter(([, n]) => n > 0).map(([what, n]) => `${n.toLocaleString('en')} ${what}`);
  const gaps = seen.last_gaps.slice(0, 6).map(([node, from, to, why]) => el('p', null, told(node), ` was not watched from ${span(from)} to ${to === null ? 'now' : span(to)}: `, told(why)));
  fill('coverage',
    el('p', null, `${seen.ranks_seen} of ${Math.max(seen.ranks_expected, seen.ranks_seen)} ranks${steps}${lost.length ? `; ${lost.join(', ')}` : ''}.`),
    ...gaps, seen.gaps > gaps.length ? el('p', 'faint', `and ${seen.gaps - gaps.length} more gaps`) : null,
    ...seen.notes.slice(0, 8).map(note => el('p', null, told(note))),
    el('p', 'faint', 'Full report: ', told(`${report.dir}/report.json`)));
}
