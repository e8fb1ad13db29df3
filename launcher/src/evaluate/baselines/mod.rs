//! Applies published rules of other projects to the same samples. The rules are implemented from their public
//! descriptions.
//!
//! Each rule gets the input of its description: self-time if the rule times kernels or sections, the wait in
//! collectives if it uses that. None of the rules supports roles or declared work. They get ordinary steps only, so
//! that no rule is charged for a declared checkpoint or warm-up. Each rule names a rank at most once, which favors the
//! rules.

mod change_point;
mod mad;
mod mean;
mod median;
mod relative;
mod shortest;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use paceline_health::event::{Step, StepKind};

/// Number of initial steps that are hidden from all rules, because kernels are compiled and caches filled in them.
const WARM_UP_STEPS: u64 = 10;
/// A step is evaluated without the ranks that are this many steps behind, because their samples were lost.
const PATIENCE_STEPS: u64 = 8;

/// One rank's times in a step, seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sample {
    rank: u32,
    own: f64,
    wait: f64,
}

/// A rule that names ranks.
trait Rule {
    /// Takes the samples of one step, in rank order, and calls `name` for each slow rank.
    fn row(&mut self, row: &[Sample], name: &mut dyn FnMut(u32));
}

/// The rules' names, in column order.
pub(super) const NAMES: [&str; 6] = [
    "best-rank score < 0.75",
    "twice the median",
    "mean × 1.2",
    "MAD z > 3.5",
    "shortest in collective",
    "change point",
];

/// A rank that a rule named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Naming {
    /// Index of the rule in [`NAMES`].
    pub(super) rule: usize,
    /// The rank.
    pub(super) rank: u32,
    /// The step after which it was named.
    pub(super) step: u64,
}

/// An incomplete step: samples by rank.
#[derive(Default)]
struct Open {
    samples: Vec<Option<Sample>>,
    seen: usize,
}

/// All rules, applied to one job.
pub(super) struct Baselines {
    rules: [Box<dyn Rule>; NAMES.len()],
    ranks: usize,
    epoch: u32,
    rows: BTreeMap<u64, Open>,
    named: BTreeSet<(usize, u32)>,
    namings: Vec<Naming>,
}

impl Baselines {
    /// Creates all rules for a job of `ranks` ranks.
    pub(super) fn new(ranks: u32) -> Baselines {
        Baselines {
            rules: rules(),
            ranks: ranks as usize,
            epoch: 0,
            rows: BTreeMap::new(),
            named: BTreeSet::new(),
            namings: Vec::new(),
        }
    }

    /// Adds one rank's step.
    pub(super) fn observe(&mut self, step: &Step) {
        if step.restart > self.epoch {
            self.epoch = step.restart;
            self.rows.clear();
        }
        let Some(own) = step.self_time().filter(|_| step.restart == self.epoch) else {
            return;
        };
        if step.kind != StepKind::Train || step.step <= WARM_UP_STEPS {
            return;
        }
        let wait = step.phases.map_or(0.0, |phases| phases.wait_ns as f64 / 1e9);
        let rank = step.rank.0 as usize;
        let row = self.rows.entry(step.step).or_default();
        row.samples.resize(self.ranks, None);
        let Some(place @ None) = row.samples.get_mut(rank) else {
            return;
        };
        *place = Some(Sample {
            rank: step.rank.0,
            own,
            wait,
        });
        row.seen += 1;
        if row.seen == self.ranks {
            self.judge(step.step);
        }
        while let Some((oldest, _)) = self.rows.first_key_value() {
            if oldest + PATIENCE_STEPS >= step.step {
                break;
            }
            self.judge(*oldest);
        }
    }

    /// Returns all named ranks, in order.
    pub(super) fn finish(self) -> Vec<Naming> {
        self.namings
    }

    fn judge(&mut self, step: u64) {
        let Some(open) = self.rows.remove(&step) else {
            return;
        };
        let row: Vec<Sample> = open.samples.into_iter().flatten().collect();
        // Skip the step if fewer than half of the ranks are present, because their median is not reliable.
        if 2 * row.len() < self.ranks || row.len() < 2 {
            return;
        }
        for (rule, judge) in self.rules.iter_mut().enumerate() {
            judge.row(&row, &mut |rank| {
                if self.named.insert((rule, rank)) {
                    self.namings.push(Naming { rule, rank, step });
                }
            });
        }
    }
}

fn rules() -> [Box<dyn Rule>; NAMES.len()] {
    [
        Box::new(relative::Relative::default()),
        Box::new(median::TwiceMedian::default()),
        Box::new(mean::MeanTimes::default()),
        Box::new(mad::MadScore),
        Box::new(shortest::Shortest::default()),
        Box::new(change_point::ChangePoint::default()),
    ]
}

/// Number of steps between two evaluations of a rule with a window.
const LOOK_EVERY: u32 = 10;

/// Sums of each rank's samples over the last steps.
#[derive(Debug, Default)]
struct Window {
    rows: VecDeque<Vec<Sample>>,
    taken: u32,
    /// The sum and the number of samples of each rank.
    sums: Vec<(f64, u32)>,
}

impl Window {
    /// Adds a row. Returns each rank's mean over the last `length` rows. It does so for the first time when there are
    /// that many rows, and then every [`LOOK_EVERY`] rows.
    fn take(&mut self, row: &[Sample], length: usize, value: fn(&Sample) -> f64) -> Option<Vec<(u32, f64)>> {
        for sample in row {
            let (sum, count) = at(&mut self.sums, sample.rank);
            *sum += value(sample);
            *count += 1;
        }
        self.rows.push_back(row.to_vec());
        if self.rows.len() > length {
            for sample in self.rows.pop_front().into_iter().flatten() {
                let (sum, count) = at(&mut self.sums, sample.rank);
                *sum -= value(&sample);
                *count -= 1;
            }
        }
        self.taken += 1;
        if self.rows.len() < length || !self.taken.is_multiple_of(LOOK_EVERY) {
            return None;
        }
        let means = (0..).zip(&self.sums).filter(|(_, (_, count))| *count > 0);
        Some(
            means
                .map(|(rank, (sum, count))| (rank, sum / f64::from(*count)))
                .collect(),
        )
    }
}

/// Returns a rank's element in a list, which grows as needed.
fn at<T: Default + Clone>(list: &mut Vec<T>, rank: u32) -> &mut T {
    let index = rank as usize;
    if list.len() <= index {
        list.resize(index + 1, T::default());
    }
    &mut list[index]
}

/// Returns the median of `values`, which it reorders.
fn middle(values: &mut [f64]) -> f64 {
    let at = values.len() / 2;
    if values.is_empty() {
        return 0.0;
    }
    *values.select_nth_unstable_by(at, f64::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_health::event::{Phases, Signal};
    use paceline_health::id::Rank;

    /// Returns the ranks named by each rule if rank 3 of 16 is `factor` times slower from step 100 of 400 on.
    fn named(factor: f64) -> BTreeMap<usize, BTreeSet<u32>> {
        let mut all = Baselines::new(16);
        for step in 1..=400 {
            for rank in 0..16 {
                let jitter = 1.0 + 0.01 * f64::from((step as u32 * 7 + rank * 13) % 11) / 11.0;
                let slow = if rank == 3 && step >= 100 { factor } else { 1.0 };
                let own = 0.2 * slow * jitter;
                let phases = Phases {
                    wait_ns: ((0.2 * factor * 1.02 - own).max(0.001) * 1e9) as u64,
                    ..Phases::default()
                };
                all.observe(&Step {
                    rank: Rank(rank),
                    restart: 0,
                    step,
                    kind: StepKind::Train,
                    dur_ns: (own * 1e9) as u64 + phases.wait_ns,
                    phases: Some(phases),
                    micro_batches: 1,
                    tokens: 0,
                    signal: Signal::S2,
                    sum_sq: 0,
                    expert_tokens: 0,
                });
            }
        }
        let mut named: BTreeMap<usize, BTreeSet<u32>> = BTreeMap::new();
        for naming in all.finish() {
            assert!(naming.step >= 100, "{} at {}", NAMES[naming.rule], naming.step);
            named.entry(naming.rule).or_default().insert(naming.rank);
        }
        named
    }

    #[test]
    fn each_rule_does_what_its_description_says() {
        let only = BTreeSet::from([3]);
        // At 2.5 times, all rules detect the rank. At 1.3, all do except "twice the median". At 1.1, the score and the
        // mean miss it too.
        let seen = |factor| -> Vec<usize> {
            let named = named(factor);
            assert!(named.values().all(|ranks| *ranks == only), "{factor}: {named:?}");
            named.into_keys().collect()
        };
        assert_eq!(seen(2.5), [0, 1, 2, 3, 4, 5]);
        assert_eq!(seen(1.5), [0, 2, 3, 4, 5]);
        assert_eq!(seen(1.25), [2, 3, 4, 5]);
        assert_eq!(seen(1.04), [3, 4]);
    }
}
