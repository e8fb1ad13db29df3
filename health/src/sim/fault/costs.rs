//! The cost of each fault, and of each imbalance of the job itself. To find the cost, the same step is simulated again
//! without the fault or imbalance.

use super::drag::{Drag, Without};
use super::truth::{Expected, OwnCost, Truth, job};
use crate::sim::spec::WorldSpec;
use crate::sim::spec::layout::Layout;
use crate::sim::step::pace::Pace;
use crate::sim::step::timeline::{Own, Timeline};
use crate::verdict::{Cause, Finding};

/// Simulated worlds that each lack one effect.
#[derive(Clone, Debug)]
pub(crate) struct Costs {
    ledgers: Vec<Ledger>,
    shadow: Timeline,
    own: Vec<Own>,
    /// How long a hung job stays hung, in seconds.
    hang_s: f64,
    /// Duration of all steps so far, seconds.
    of_s: f64,
}

#[derive(Clone, Debug)]
struct Ledger {
    without: Without,
    /// The optimizer time of each rank in the last step, if the last step was simulated without the effect.
    lag: Option<Vec<f64>>,
    lost_s: f64,
}

/// The step as simulated with all effects.
#[derive(Clone, Copy)]
pub(crate) struct Lived<'a> {
    pub step: u64,
    pub own: &'a [Own],
    pub meet_s: f64,
    pub pace: &'a Pace,
    pub drag: &'a Drag,
    pub layout: &'a Layout,
}

impl Costs {
    pub fn new(spec: &WorldSpec, timeline: &Timeline) -> Costs {
        let felt = spec
            .faults
            .iter()
            .enumerate()
            .filter(|(_, fault)| fault.is_felt());
        let mut all: Vec<Without> = felt.map(|(index, _)| Without::Fault(index)).collect();
        if all.len() > 1 {
            all.push(Without::Faults);
        }
        let uneven = spec.stages.windows(2).any(|pair| pair[0] != pair[1]);
        let own = [
            (uneven, Without::Stages),
            (spec.work.packed > 0.0, Without::Sequences),
            (spec.work.experts > 0.0, Without::Experts),
            (spec.step.gc.every > 0, Without::Gc),
        ];
        all.extend(
            own.iter()
                .filter(|(there, _)| *there)
                .map(|(_, without)| *without),
        );
        let ledger = |without| Ledger {
            without,
            lag: None,
            lost_s: 0.0,
        };
        Costs {
            ledgers: all.into_iter().map(ledger).collect(),
            shadow: timeline.clone(),
            own: Vec::new(),
            hang_s: spec.hang_s,
            of_s: 0.0,
        }
    }

    /// Adds the costs of a step.
    pub fn settle(&mut self, lived: Lived<'_>, truth: &mut [Truth]) {
        self.of_s += lived.meet_s.min(self.hang_s);
        let ranks = lived.own.len() as f64;
        for ledger in &mut self.ledgers {
            let strikes = lived
                .drag
                .blows()
                .iter()
                .any(|blow| ledger.without.skips(blow.index));
            let active = match ledger.without {
                Without::Fault(_) | Without::Faults => strikes,
                _ => true,
            };
            if !active && ledger.lag.is_none() {
                continue;
            }
            run(&mut self.own, ledger, &lived);
            let without = ledger.without;
            let roads = lived.drag.roads(&lived.pace.roads, lived.layout, without);
            let roads = roads.as_ref().unwrap_or(&lived.pace.roads);
            let met = self.shadow.run(&self.own, lived.pace.shares(without), roads);
            let met = met + lived.drag.collective_stall(without);
            let meet = if lived.meet_s.is_finite() || met.is_infinite() {
                lived.meet_s
            } else {
                self.hang_s.max(met)
            };
            if met.is_finite() {
                ledger.lost_s += meet - met;
            }
            ledger.lag = active.then(|| self.own.iter().map(|own| own.optimizer).collect());
            if let Without::Fault(index) = without {
                truth[index].lost_gpu_s = ledger.lost_s * ranks;
                feel(&mut truth[index], &lived, &self.own, strikes);
            }
        }
    }

    /// Handles a restart. Restarted ranks have no optimizer time from a previous step.
    pub fn restart(&mut self) {
        for ledger in &mut self.ledgers {
            ledger.lag = None;
        }
    }

    /// Returns the seconds that each rank lost to all faults together.
    pub fn lost_s(&self) -> f64 {
        let of = |wanted: fn(&Without) -> bool| self.ledgers.iter().find(|ledger| wanted(&ledger.without));
        of(|without| *without == Without::Faults)
            .or_else(|| of(|without| matches!(without, Without::Fault(_))))
            .map_or(0.0, |ledger| ledger.lost_s)
    }

    /// Returns the cost of the job's own imbalances.
    pub fn own_costs(&self, spec: &WorldSpec) -> Vec<OwnCost> {
        let ranks = f64::from(spec.ranks());
        let cost = |ledger: &Ledger| {
            let (finding, cause) = match ledger.without {
                Without::Stages => (Finding::StageImbalance, Cause::Imbalance),
                Without::Sequences => (Finding::SequenceImbalance, Cause::Imbalance),
                Without::Experts => (Finding::ExpertImbalance, Cause::Imbalance),
                Without::Gc => (Finding::GcPause, Cause::GcPause),
                Without::Nothing | Without::Fault(_) | Without::Faults => return None,
            };
            Some(OwnCost {
                expected: Expected {
                    finding,
                    subject: job(spec),
                    cause,
                },
                lost_gpu_s: ledger.lost_s * ranks,
                of_gpu_s: self.of_s * ranks,
            })
        };
        self.ledgers.iter().filter_map(cost).collect()
    }
}

/// Simulates the ranks without the effect.
fn run(own: &mut Vec<Own>, ledger: &Ledger, lived: &Lived<'_>) {
    own.clear();
    let without = ledger.without;
    own.extend((0..).zip(lived.own).map(|(rank, real): (u32, &Own)| {
        let lag = ledger.lag.as_ref().map_or(real.lag, |lag| lag[rank as usize]);
        lived
            .pace
            .own(rank, &lived.drag.pull(rank, without), lag, without)
    }));
}

/// Records the ranks that the fault affects.
fn feel(truth: &mut Truth, lived: &Lived<'_>, without: &[Own], strikes: bool) {
    for (rank, (real, without)) in (0..).zip(lived.own.iter().zip(without)) {
        truth.feel(lived.step, rank, real.total(), without.total());
    }
    if strikes && truth.fault.is_of_all() {
        truth.feel_step(lived.step);
    }
}
