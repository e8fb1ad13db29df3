//! Runs the phases of a preflight, in order. They are the same for real and simulated fleets.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_health::id::{JobId, NodeId};
use paceline_health::preflight::{
    Carried, Fact, Judge, MAX_ROUNDS, Metric, NodeRow, Outcome, PREFLIGHT_SCHEMA, Past, Place,
    PreflightTable, Problem, Report, Sample, Wanted, next_pairs,
};

use super::fleet::{Fault, Fleet, Task};
use crate::preflight::message::Found;
use crate::preflight::mode::{Limits, Mode};
use crate::preflight::transport_choice::{Nccl, TransportChoice, choose};

/// Parameters of a preflight.
#[derive(Clone, Debug)]
pub struct Brief {
    /// How thorough the preflight is.
    pub mode: Mode,
    /// The job.
    pub job: Arc<str>,
    /// Version of the program.
    pub paceline: Arc<str>,
    /// Bus bandwidth that must be reached, in GB/s.
    pub min_busbw: Option<f64>,
    /// True if the fabric is simulated.
    pub simulated: bool,
    /// The start time, which includes the rendezvous.
    pub began: Instant,
    /// Missing nodes, and rejected connections.
    pub problems: Vec<Problem>,
}

/// Looks up earlier results for the measurements. An error is added to the report.
pub type Recall = dyn Fn(&[Sample]) -> io::Result<Vec<Past>>;

/// Runs all phases and judges the results. `phase` is called with the progress: the phase, the completed steps, and the
/// total steps.
pub fn conduct(
    fleet: &mut dyn Fleet,
    brief: Brief,
    past: &Recall,
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
        able: BTreeMap::new(),
        carried: Vec::new(),
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
    /// Whether NCCL can be used, by node.
    able: BTreeMap<NodeId, Nccl>,
    carried: Vec<Carried>,
    began: Instant,
    wanted: Wanted,
}

/// Number of steps of the progress bar.
const STEPS: u32 = 4 + MAX_ROUNDS;
/// Limit of repeats for suspects.
const MAX_REPEATS: u32 = 2;
/// Metrics measured among the ranks of one node.
const LOCAL: [Metric; 2] = [Metric::LocalBusbw, Metric::LocalBusbwHost];

impl Run<'_> {
    fn phases(&mut self) {
        self.on_all("snapshot", 0, &Task::Snapshot, self.limits.snapshot);
        self.wanted.nodes = u32::try_from(self.fleet.nodes().len()).unwrap_or(u32::MAX);
        self.on_all("work", 1, &Task::Work { round: 0 }, self.limits.work);
        self.inside("local", 0);
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

    /// Measures again when values of a node look bad, before they are reported. This is done once, and a second time if
    /// there is time. All nodes take part again, because nodes on the same machine affect each other.
    fn repeat_suspects(&mut self) {
        for round in 1..=MAX_REPEATS {
            let (local, work): (Vec<Sample>, Vec<Sample>) = self
                .samples
                .iter()
                .cloned()
                .partition(|sample| LOCAL.contains(&sample.metric));
            let (local, work) = (self.is_suspect(&local), self.is_suspect(&work));
            let limits = &self.limits;
            let later = limits.pairs * MAX_ROUNDS + limits.all;
            if round > 1 && self.left() < limits.work + limits.local + later {
                return;
            }
            if work {
                self.on_all("work again", 2, &Task::Work { round }, self.limits.work);
            }
            if local {
                self.inside("local again", round);
            }
            if !work && !local {
                return;
            }
        }
    }

    /// Returns true if these samples make a remaining node suspect.
    fn is_suspect(&self, samples: &[Sample]) -> bool {
        let there: BTreeSet<NodeId> = self.fleet.nodes().into_iter().collect();
        let judge = Judge::new(&self.table, &[], &self.wanted);
        let places = judge.suspects(samples);
        places
            .iter()
            .filter_map(Place::node)
            .any(|node| there.contains(node))
    }

    /// Returns the remaining time for the whole preflight.
    fn left(&self) -> Duration {
        let spent = self.began.elapsed() + Duration::from_secs(2);
        self.limits.total.saturating_sub(spent)
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

    fn inside(&mut self, phase: &str, round: u32) {
        let nodes = self.fleet.nodes();
        let of = |node: NodeId| {
            let over = self.over(phase, std::slice::from_ref(&node));
            (node, Task::Local { round, over })
        };
        let tasks = nodes.into_iter().map(of).collect();
        self.ask(phase, 2, tasks, self.limits.local);
    }

    fn in_groups(
        &mut self,
        phase: &str,
        step: u32,
        groups: &[Vec<NodeId>],
        pair_round: Option<u32>,
        limit: Duration,
    ) {
        let mut tasks = Vec::new();
        for nodes in groups {
            let over = self.over(phase, nodes);
            tasks.extend(nodes.iter().enumerate().map(|(rank, node)| {
                let task = Task::Group {
                    nodes: nodes.clone(),
                    rank,
                    pair_round,
                    over: over.clone(),
                };
                (node.clone(), task)
            }));
        }
        self.ask(phase, step, tasks, limit);
    }

    /// Selects the transport of a group, and records the choice for the report.
    fn over(&mut self, phase: &str, nodes: &[NodeId]) -> TransportChoice {
        let (over, why) = choose(nodes, &self.able, self.limits.rails);
        let (transport, why): (Arc<str>, Arc<str>) = match &over {
            _ if self.wanted.simulated => ("sim".into(), "".into()),
            TransportChoice::Tcp => ("tcp".into(), why),
            TransportChoice::Nccl(team) => (format!("nccl {}", team.version).into(), why),
        };
        let is_same =
            |known: &&mut Carried| (&*known.phase, &known.transport, &known.why) == (phase, &transport, &why);
        match self.carried.iter_mut().find(is_same) {
            Some(known) => known.groups += 1,
            None => self.carried.push(Carried {
                phase: phase.into(),
                transport,
                groups: 1,
                why,
            }),
        }
        over
    }

    fn ask(&mut self, phase: &str, step: u32, tasks: Vec<(NodeId, Task)>, limit: Duration) {
        (self.phase)(phase, step, STEPS);
        let begin = Instant::now();
        // The total time is limited too, however long earlier phases took.
        let limit = limit.min(self.left());
        if limit.is_zero() {
            self.problems.push(Problem {
                node: None,
                phase: phase.into(),
                what: "was skipped: no time was left".into(),
                lost: false,
            });
            return;
        }
        let nothing = |(node, task): &(NodeId, Task)| Some((node.clone(), task.nothing(node)?));
        let nothing: Vec<(NodeId, Sample)> = tasks.iter().filter_map(nothing).collect();
        let answers = self.fleet.ask(phase, tasks, limit);
        // These nodes are reported anyway, because they are lost or report a problem of their own.
        let told = |(_, answer): &(&NodeId, &Result<Found, Fault>)| {
            answer
                .as_ref()
                .is_err_and(|fault| fault.lost || fault.peer.is_none())
        };
        let told: BTreeSet<NodeId> = answers
            .iter()
            .filter(told)
            .map(|(node, _)| node.clone())
            .collect();
        let is_lost =
            |(_, answer): &(&NodeId, &Result<Found, Fault>)| answer.as_ref().is_err_and(|fault| fault.lost);
        let lost: BTreeSet<NodeId> = answers
            .iter()
            .filter(is_lost)
            .map(|(node, _)| node.clone())
            .collect();
        // If a measurement failed because a node was lost, that is not a failure of the link.
        let blames_lost = |fault: &Fault| fault.peer.as_ref().is_some_and(|peer| lost.contains(peer));
        for (leader, nothing) in nothing {
            if let Some(Err(fault)) = answers.get(&leader)
                && !fault.lost
                && !blames_lost(fault)
            {
                self.samples.push(nothing);
            }
        }
        for (node, answer) in answers {
            match answer {
                Ok(found) => self.take(phase, node, found),
                Err(mut fault) => {
                    if !blames_lost(&fault) {
                        self.samples.append(&mut fault.samples);
                    }
                    self.fail(phase, node, fault, &told);
                }
            }
        }
        for (node, fault) in self.fleet.ended(phase) {
            self.fail(phase, node, fault, &told);
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
        self.able.extend(found.nccl.map(|nccl| (node.clone(), nccl)));
        // A node may report its network more than once, so duplicates are skipped.
        for fact in found.facts {
            if phase == "snapshot" || !self.facts.contains(&fact) {
                self.facts.push(fact);
            }
        }
        // Skip invalid values, which come from a broken clock or an empty run.
        self.samples.extend(
            found
                .samples
                .into_iter()
                .filter(|sample| sample.value.is_finite()),
        );
    }

    /// Records the failure of a node. If the node only waited for a node that is reported anyway, it is not reported
    /// itself.
    fn fail(&mut self, phase: &str, node: NodeId, fault: Fault, told: &BTreeSet<NodeId>) {
        if !fault.lost && fault.peer.as_ref().is_some_and(|peer| told.contains(peer)) {
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

    fn report(&mut self, brief: &Brief, past: &Recall) -> Report {
        let past = past(&self.samples).unwrap_or_else(|problem| {
            self.problems.push(Problem {
                node: None,
                phase: "passports".into(),
                what: format!("what was measured earlier cannot be read: {problem}").into(),
                lost: false,
            });
            Vec::new()
        });
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
            carried: std::mem::take(&mut self.carried),
        };
        for (node, row) in &mut report.nodes {
            row.address = self.fleet.address(node).unwrap_or_default().into();
        }
        let table = &self.table;
        report.conclude(judged, |metric, one, other| table.metric(metric).best(one, other));
        report
    }
}
