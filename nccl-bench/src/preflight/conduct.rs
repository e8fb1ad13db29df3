//! The phases, in order: the same for real and simulated fleets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_health::id::{JobId, NodeId};
use paceline_health::preflight::{
    Fact, Judge, MAX_ROUNDS, Metric, NodeRow, Outcome, PREFLIGHT_SCHEMA, Past, Place, PreflightTable,
    Problem, Report, Sample, Wanted, next_pairs,
};

use super::fleet::{Fault, Fleet, Task};
use super::message::Found;
use super::mode::{Limits, Mode};

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Brief {
    /// How thorough.
    pub mode: Mode,
    /// Of which job.
    pub job: Arc<str>,
    /// Version of the program.
    pub paceline: Arc<str>,
    /// Bus bandwidth that must be reached, GB/s.
    pub min_busbw: Option<f64>,
    /// A fabric is simulated.
    pub simulated: bool,
    /// When it began: the rendezvous counts.
    pub began: Instant,
    /// Nodes that never came, and strangers.
    pub problems: Vec<Problem>,
}

/// Runs all phases and judges. `past` gives what is known of earlier runs, once it is known what was measured; `phase`
/// is told where it stands: the phase, how many are done, of how many.
pub fn conduct(
    fleet: &mut dyn Fleet,
    brief: Brief,
    past: &dyn Fn(&[Sample]) -> Vec<Past>,
    phase: &mut dyn FnMut(&str, u32, u32),
) -> Report {
    let mut run = Run {
        limits: brief.mode.limits(),
        table: PreflightTable::default(),
        fleet,
        phase,
        nodes: BTreeMap::new(),
        facts: Vec::new(),
        samples: Vec::new(),
        problems: brief.problems.clone(),
        phases: vec![("rendezvous".into(), brief.began.elapsed().as_secs_f64())],
        began: brief.began,
        wanted: Wanted {
            min_busbw: brief.min_busbw,
            simulated: brief.simulated,
            ..Wanted::default()
        },
    };
    let absent = run.problems.iter().filter_map(|problem| problem.node.clone());
    run.nodes.extend(absent.map(|node| (node, NodeRow::default())));
    run.phases();
    let report = run.report(&brief, past);
    run.fleet.done(&report);
    report
}

struct Run<'a> {
    limits: Limits,
    table: PreflightTable,
    fleet: &'a mut dyn Fleet,
    phase: &'a mut dyn FnMut(&str, u32, u32),
    nodes: BTreeMap<NodeId, NodeRow>,
    facts: Vec<Fact>,
    samples: Vec<Sample>,
    problems: Vec<Problem>,
    phases: Vec<(Arc<str>, f64)>,
    began: Instant,
    wanted: Wanted,
}

/// Steps that are counted for a progress bar.
const STEPS: u32 = 4 + MAX_ROUNDS;

impl Run<'_> {
    fn phases(&mut self) {
        self.on_all("snapshot", 0, &Task::Snapshot, self.limits.snapshot);
        self.wanted.nodes = u32::try_from(self.fleet.nodes().len()).unwrap_or(u32::MAX);
        self.on_all("work", 1, &Task::Work { round: 0 }, self.limits.work);
        self.on_all("local", 2, &Task::Local { round: 0 }, self.limits.local);
        self.repeat_suspects();
        for round in 0..MAX_ROUNDS {
            let pairs = next_pairs(&self.table, &self.fleet.nodes(), &self.samples, round);
            if pairs.is_empty() {
                break;
            }
            let groups: Vec<Vec<NodeId>> = pairs.into_iter().map(|(a, b)| vec![a, b]).collect();
            let name = format!("pairs, round {}", round + 1);
            self.in_groups(&name, 3 + round, &groups, Some(round), self.limits.pairs);
        }
        let all = self.fleet.nodes();
        if all.len() > 2 {
            self.in_groups("all", STEPS - 1, &[all], None, self.limits.all);
        }
    }

    /// What looks bad on a node by itself is measured once more before anybody is accused.
    fn repeat_suspects(&mut self) {
        let judge = Judge::new(&self.table, &[], &self.wanted);
        let places = judge.suspects(&self.samples);
        let there: BTreeSet<NodeId> = self.fleet.nodes().into_iter().collect();
        let suspects: BTreeSet<&NodeId> = places
            .iter()
            .filter_map(Place::node)
            .filter(|node| there.contains(*node))
            .collect();
        let local = [Metric::LocalBusbw, Metric::LocalBusbwHost];
        let of_local = |sample: &&Sample| local.contains(&sample.metric);
        let local: Vec<Sample> = self.samples.iter().filter(of_local).cloned().collect();
        let local = judge.suspects(&local);
        // The others work along, as they did the first time: what shares a machine with them does too.
        if suspects.is_empty() {
            return;
        }
        self.on_all("work again", 2, &Task::Work { round: 1 }, self.limits.work);
        if !local.is_empty() {
            self.on_all("local again", 2, &Task::Local { round: 1 }, self.limits.local);
        }
    }

    fn on_all(&mut self, phase: &str, step: u32, task: &Task, limit: Duration) {
        let tasks = self
            .fleet
            .nodes()
            .into_iter()
            .map(|node| (node, task.clone()))
            .collect();
        self.ask(phase, step, tasks, limit);
    }

    fn in_groups(
        &mut self,
        phase: &str,
        step: u32,
        groups: &[Vec<NodeId>],
        pair_round: Option<u32>,
        limit: Duration,
    ) {
        let tasks = groups.iter().flat_map(|nodes| {
            nodes.iter().enumerate().map(move |(rank, node)| {
                let nodes = nodes.clone();
                (
                    node.clone(),
                    Task::Group {
                        nodes,
                        rank,
                        pair_round,
                    },
                )
            })
        });
        self.ask(phase, step, tasks.collect(), limit);
    }

    fn ask(&mut self, phase: &str, step: u32, tasks: Vec<(NodeId, Task)>, limit: Duration) {
        (self.phase)(phase, step, STEPS);
        let begin = Instant::now();
        // The whole has an end too, whatever the phases before it took.
        let left = self
            .limits
            .total
            .saturating_sub(self.began.elapsed() + Duration::from_secs(2));
        let limit = limit.min(left);
        if limit.is_zero() {
            self.problems.push(Problem {
                node: None,
                phase: phase.into(),
                what: "was left out: there was no time left".into(),
                lost: false,
            });
            return;
        }
        let answers = self.fleet.ask(phase, tasks, limit);
        let lost: BTreeSet<NodeId> = answers
            .iter()
            .filter(|(_, answer)| answer.as_ref().is_err_and(|fault| fault.lost))
            .map(|(node, _)| node.clone())
            .collect();
        for (node, answer) in answers {
            match answer {
                Ok(found) => self.take(phase, node, found),
                Err(fault) => self.fail(phase, node, fault, &lost),
            }
        }
        self.phases.push((phase.into(), begin.elapsed().as_secs_f64()));
    }

    fn take(&mut self, phase: &str, node: NodeId, found: Found) {
        let row = self.nodes.entry(node.clone()).or_default();
        row.there = true;
        if !found.model.is_empty() {
            row.model = Arc::clone(&found.model);
            row.gpus = row.gpus.max(found.gpus);
            self.wanted.machines.insert(node.clone(), (found.model, row.gpus));
        }
        let note = |what: String| Problem {
            node: Some(node.clone()),
            phase: phase.into(),
            what: what.into(),
            lost: false,
        };
        self.problems.extend(found.notes.into_iter().map(note));
        self.facts.extend(found.facts);
        // A broken clock or an empty run is no measurement.
        self.samples.extend(
            found
                .samples
                .into_iter()
                .filter(|sample| sample.value.is_finite()),
        );
    }

    /// Who waited for a node that is lost has nothing of its own to tell.
    fn fail(&mut self, phase: &str, node: NodeId, fault: Fault, lost: &BTreeSet<NodeId>) {
        if !fault.lost && fault.peer.as_ref().is_some_and(|peer| lost.contains(peer)) {
            return;
        }
        let row = self.nodes.entry(node.clone()).or_default();
        row.there = !fault.lost;
        self.problems.push(Problem {
            node: Some(node),
            phase: phase.into(),
            what: fault.what.into(),
            lost: fault.lost,
        });
    }

    fn report(&mut self, brief: &Brief, past: &dyn Fn(&[Sample]) -> Vec<Past>) -> Report {
        let past = past(&self.samples);
        let judged = Judge::new(&self.table, &past, &self.wanted).judge(&self.samples, &self.facts);
        let mut report = Report {
            schema_version: PREFLIGHT_SCHEMA,
            paceline: Arc::clone(&brief.paceline),
            job: JobId(Arc::clone(&brief.job)),
            mode: brief.mode.name().into(),
            simulated: brief.simulated,
            outcome: Outcome::Unknown,
            seconds: self.began.elapsed().as_secs_f64(),
            phases: std::mem::take(&mut self.phases),
            nodes: std::mem::take(&mut self.nodes),
            findings: Vec::new(),
            problems: std::mem::take(&mut self.problems),
            comparisons: 0,
            unsteady: Vec::new(),
            samples: std::mem::take(&mut self.samples),
        };
        let table = &self.table;
        report.conclude(judged, |metric, one, other| table.metric(metric).best(one, other));
        report
    }
}
