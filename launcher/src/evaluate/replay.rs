//! Replays journals and checks that the verdicts are the same, byte for byte.

use paceline_health::codec::line;
use paceline_health::sim::World;
use paceline_health::verdict::Verdict;
use paceline_health::{Detector, Entry, Policy};

use super::pool;
use super::row::Row;
use super::suite::{Job, MOST_SEEDS, Scenario, Suite};
use super::{interval::wilson, suite};

/// Number of worlds that are replayed.
const WORLDS: u64 = 200;
/// Maximum size of a world, in rank-steps. It is small because encoding the journal takes ten times as long as the
/// detector's work.
const MOST_RANK_STEPS: u64 = 9_000;

/// Judges [`WORLDS`] worlds live, and again from the text of their journals.
///
/// # Errors
/// If a built-in scenario is invalid.
pub(super) fn row(base: u64, threads: usize) -> Result<Row, String> {
    let scenarios = scenarios();
    let jobs: Result<Vec<Job>, String> = (0..WORLDS)
        .map(|seed| {
            let index = (seed % scenarios.len() as u64) as usize;
            scenarios[index].job(index, base, seed % MOST_SEEDS)
        })
        .collect();
    let jobs = jobs?;
    let pairs = pool::map(&jobs, threads, Job::rank_steps, twice, |_| {});
    let same = pairs.iter().filter(|(live, again)| live == again).count() as u64;
    let said: usize = pairs.iter().map(|(live, _)| live.lines().count()).sum();
    Ok(
        Row::at_least("replay gives the same verdicts as live, byte for byte", 1.0)
            .with(same as f64 / WORLDS as f64, WORLDS)
            .within(wilson(same, WORLDS))
            .noting(format!("{said} verdicts")),
    )
}

/// Returns small worlds that have verdicts.
fn scenarios() -> Vec<Scenario> {
    let wanted = [Suite::Quiet, Suite::Faults, Suite::Rough, Suite::Causes];
    let mut all = suite::of(&wanted);
    all.retain(|scenario| {
        scenario
            .job(0, 0, 0)
            .is_ok_and(|job| job.rank_steps() <= MOST_RANK_STEPS)
    });
    all
}

/// Returns the verdict lines of a live run, and those of its replayed journal.
fn twice(job: &Job) -> (String, String) {
    let Ok(world) = World::new(job.spec.clone()) else {
        return (String::new(), "no world".to_owned());
    };
    let (mut live, mut journal) = (Fold::new(), String::new());
    for (n, (at_ns, frame)) in (1..).zip(world) {
        let entry = Entry { n, at_ns, frame };
        journal.push_str(&line::encode(&entry));
        journal.push('\n');
        live.take(&entry);
    }
    let mut again = Fold::new();
    for text in journal.lines() {
        match line::decode(text) {
            Ok(entry) => again.take(&entry),
            Err(problem) => again.said.push_str(&problem.to_string()),
        }
    }
    (live.said, again.said)
}

struct Fold {
    detector: Detector,
    said: String,
}

impl Fold {
    fn new() -> Fold {
        Fold {
            detector: Detector::new(Policy::default()),
            said: String::new(),
        }
    }

    fn take(&mut self, entry: &Entry) {
        self.detector.read(entry);
        while let Some(verdict) = self.detector.poll() {
            self.said.push_str(&text(&verdict));
            self.said.push('\n');
        }
    }
}

/// Formats a verdict as a line of `verdicts.ndjson`.
fn text(verdict: &Verdict) -> String {
    serde_json::to_string(verdict).unwrap_or_else(|problem| problem.to_string())
}
