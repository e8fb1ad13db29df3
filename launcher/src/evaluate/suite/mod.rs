//! The scenarios: worlds as text, their faults, and the expected verdicts.
//!
//! The seed chooses the values of `{rank}`, `{other}`, `{node}`, `{peer}` and `{rack}` in a text. Scored seeds are
//! [`SCORED`] and up. To tune the detector, use [`TUNING`] and up, as `--tuning`, every transcript and every test do,
//! so that nothing is fitted to the scored seeds.

mod chosen;
mod collectives;
mod faults;
mod healthy;
mod imbalance;
mod overlap;
mod slow;

use paceline_health::sim::WorldSpec;

use self::chosen::Chosen;
use super::expect::Expectation;

/// The first scored seed.
pub(super) const SCORED: u64 = 29_000_000_000;
/// The first seed for tuning. The seeds from here to [`SCORED`] are for tuning.
pub(super) const TUNING: u64 = 1_000_000_000;
/// Maximum number of seeds of one scenario. Each scenario has this many seeds reserved.
pub(super) const MOST_SEEDS: u64 = 1000;

/// Groups of scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Suite {
    /// A few small worlds: a quick check of everything.
    Smoke,
    /// One rank is persistently slower by 5 % or more, and step times vary by 0.5 %.
    Quiet,
    /// One rank is persistently slower by 10 % or more, and step times vary by 11 %.
    Noisy,
    /// Three cases with 64 ranks, to measure the time to decision.
    Pace,
    /// Slowdowns around the smallest that can be detected.
    Floor,
    /// All other kinds of faults.
    Faults,
    /// Slow ranks with a cause that counters show.
    Causes,
    /// Jobs with imbalanced work.
    Imbalance,
    /// Jobs whose ranks report collectives but no phases.
    Collectives,
    /// Jobs whose ranks report only collectives, which overlap with compute.
    Overlap,
    /// Jobs that do not declare their parallel layout.
    Undeclared,
    /// Healthy jobs.
    Healthy,
    /// Healthy jobs with a bad path to the detector.
    Rough,
    /// Checks that replayed journals give the same verdicts.
    Replay,
    /// Measures decision latency and throughput with 16,384 ranks.
    Scale,
}

impl Suite {
    /// All suites: name and description.
    pub(super) const ALL: [(Suite, &'static str, &'static str); 15] = [
        (
            Suite::Smoke,
            "smoke",
            "a few small worlds of the others; not in the default",
        ),
        (
            Suite::Quiet,
            "quiet",
            "one rank 5 % to 300 % slower, steps vary by 0.5 %",
        ),
        (
            Suite::Noisy,
            "noisy",
            "one rank 10 % to 300 % slower, steps vary by 11 %",
        ),
        (Suite::Pace, "pace", "steps to decide, 64 ranks"),
        (Suite::Floor, "floor", "the smallest slowdown that is caught"),
        (
            Suite::Faults,
            "faults",
            "short, on and off, two at once, moving, nodes, racks, links, hangs",
        ),
        (
            Suite::Causes,
            "causes",
            "slow ranks with the counters of their cause",
        ),
        (
            Suite::Imbalance,
            "imbalance",
            "uneven stages, packed sequences, busy experts",
        ),
        (
            Suite::Collectives,
            "collectives",
            "slow ranks, links and healthy jobs, detected by collectives alone",
        ),
        (
            Suite::Overlap,
            "overlap",
            "the same with collectives that overlap compute: nothing exposed",
        ),
        (
            Suite::Undeclared,
            "undeclared",
            "slow ranks and healthy jobs whose layout is not declared",
        ),
        (
            Suite::Healthy,
            "healthy",
            "healthy jobs: all noises, step kinds and sizes",
        ),
        (
            Suite::Rough,
            "rough",
            "restarts, lost, late, repeated and reordered samples",
        ),
        (
            Suite::Replay,
            "replay",
            "a journal judged again, byte for byte, 200 seeds",
        ),
        (
            Suite::Scale,
            "scale",
            "16,384 ranks: time of a decision, speed of the fold",
        ),
    ];

    /// Returns the suite with this name.
    pub(super) fn named(name: &str) -> Option<Suite> {
        Suite::ALL
            .iter()
            .find(|(_, known, _)| *known == name)
            .map(|(suite, ..)| *suite)
    }

    pub(super) fn name(self) -> &'static str {
        Suite::ALL
            .iter()
            .find(|(suite, ..)| *suite == self)
            .map_or("", |(_, name, _)| name)
    }
}

/// What the report's coverage must show for a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Seen {
    /// Coverage is not checked.
    #[default]
    Any,
    /// All steps were seen.
    Whole,
    /// Some steps were lost.
    Part,
    /// A node was not monitored for a while.
    Gap,
}

/// A world, its faults, and the expected verdicts.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    /// The unique name of the scenario.
    pub(super) name: String,
    /// The suite that the scenario belongs to.
    pub(super) suite: Suite,
    /// The world, as [`WorldSpec::parse`] reads it.
    pub(super) world: String,
    /// The faults.
    pub(super) faults: Vec<String>,
    /// The expected verdicts, as [`Expectation::parse`] reads them.
    pub(super) expect: Vec<String>,
    /// Slowdown of the slow rank as a fraction, if there is one.
    pub(super) slower: Option<f64>,
    /// Multiplier of the number of seeds.
    pub(super) times: u64,
    /// What the report's coverage must show.
    pub(super) seen: Seen,
    /// True if the scenario also belongs to the smoke suite.
    pub(super) smoke: bool,
}

/// One world to simulate.
#[derive(Clone, Debug)]
pub(super) struct Job {
    /// Index of the scenario in the current selection.
    pub(super) scenario: usize,
    /// The specification of the world, including its faults.
    pub(super) spec: WorldSpec,
    /// The expected verdicts.
    pub(super) expect: Vec<Expectation>,
    /// The command that simulates the world again.
    pub(super) command: String,
}

impl Scenario {
    fn new(suite: Suite, name: impl Into<String>, world: impl Into<String>) -> Scenario {
        Scenario {
            name: name.into(),
            suite,
            world: world.into(),
            faults: Vec::new(),
            expect: Vec::new(),
            slower: None,
            times: 1,
            seen: Seen::Any,
            smoke: false,
        }
    }

    fn fault(mut self, fault: impl Into<String>) -> Scenario {
        self.faults.push(fault.into());
        self
    }

    fn expect(mut self, expectation: impl Into<String>) -> Scenario {
        self.expect.push(expectation.into());
        self
    }

    /// If `holds`, permits a further verdict that is true in the world but is not what the scenario tests.
    fn aside(self, holds: bool, expectation: &str) -> Scenario {
        if holds {
            self.expect(format!("?{expectation}"))
        } else {
            self
        }
    }

    /// Permits findings that come from the hardware itself. They are true for the affected ranks, but do not yet show
    /// that a rank is slow.
    fn shows(self, cause: &str, whom: &str) -> Scenario {
        let findings: &[&str] = match cause {
            "thermal" => &["gpu-throttled"],
            "power" => &["gpu-throttled", "gpu-config"],
            "clock-stuck" => &["gpu-config"],
            "ecc" => &["ecc-uncorrectable", "ecc-corrected", "row-remap"],
            "pcie" => &["pcie-degraded"],
            "nvlink" => &["nvlink-errors"],
            _ => &[],
        };
        let told = findings.iter().fold(self, |scenario, finding| {
            scenario.expect(format!("?{finding} {whom} of=0"))
        });
        told.aside(cause == "ecc", "results-suspect job of=0")
    }

    fn slower(mut self, share: f64) -> Scenario {
        self.slower = Some(share);
        self
    }

    /// Adds words to the world's specification.
    fn world(mut self, words: &str) -> Scenario {
        self.world = format!("{} {words}", self.world);
        self
    }

    fn times(mut self, times: u64) -> Scenario {
        self.times = times;
        self
    }

    fn seen(mut self, seen: Seen) -> Scenario {
        self.seen = seen;
        self
    }

    fn smoke(mut self) -> Scenario {
        self.smoke = true;
        self
    }

    /// Returns the world for the seed number `index` after `base`.
    ///
    /// # Errors
    /// Returns a message if the scenario is invalid, which is a bug.
    pub(super) fn job(&self, scenario: usize, base: u64, index: u64) -> Result<Job, String> {
        let complain = |what: &str, problem: &dyn std::fmt::Display| {
            format!("scenario {}: {what}: {problem}", self.name)
        };
        let seed = base + u64::from(fnv(&self.name) % 8_000_000) * MOST_SEEDS + index;
        let mut spec = WorldSpec::parse(&self.world).map_err(|problem| complain(&self.world, &problem))?;
        spec.seed = seed;
        let chosen = Chosen::of(&spec);
        let mut command = format!("paceline simulate --seed {seed} --world {:?}", self.world);
        for fault in &self.faults {
            let fault = chosen.fill(fault);
            spec.faults
                .push(fault.parse().map_err(|problem| complain(&fault, &problem))?);
            command.push_str(&format!(" --fault {fault:?}"));
        }
        spec.check().map_err(|problem| complain("spec", &problem))?;
        let read = |(index, text): (usize, &String)| Expectation::parse(&chosen.fill(text), index);
        let expect = self.expect.iter().enumerate().map(read).collect::<Result<_, _>>();
        Ok(Job {
            scenario,
            spec,
            expect: expect.map_err(|problem| complain("expectation", &problem))?,
            command,
        })
    }
}

impl Job {
    /// Returns the approximate amount of work, in rank-steps.
    pub(super) fn rank_steps(&self) -> u64 {
        u64::from(self.spec.ranks()) * self.spec.steps
    }

    /// Returns the rack of a node.
    pub(super) fn rack_of(&self, node: u32) -> u32 {
        node * self.spec.racks.max(1) / self.spec.nodes.max(1)
    }
}

/// Returns all scenarios, in display order.
pub(super) fn all() -> Vec<Scenario> {
    [
        slow::scenarios(),
        faults::scenarios(),
        imbalance::scenarios(),
        collectives::scenarios(),
        overlap::scenarios(),
        healthy::scenarios(),
    ]
    .concat()
}

/// Returns the scenarios of `suites`.
pub(super) fn of(suites: &[Suite]) -> Vec<Scenario> {
    let smoke = suites.contains(&Suite::Smoke);
    let wanted = |scenario: &Scenario| suites.contains(&scenario.suite) || (smoke && scenario.smoke);
    all().into_iter().filter(wanted).collect()
}

/// Hashes a scenario's name with FNV-1a, so that it keeps its seeds when other scenarios are added or removed.
fn fnv(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_scenario_is_a_world() {
        for (index, scenario) in all().iter().enumerate() {
            for seed in 0..3 {
                scenario
                    .job(index, TUNING, seed)
                    .unwrap_or_else(|problem| panic!("{problem}"));
            }
        }
    }

    #[test]
    fn names_and_seeds_are_nobody_elses() {
        let all = all();
        let names: BTreeSet<&str> = all.iter().map(|scenario| scenario.name.as_str()).collect();
        assert_eq!(names.len(), all.len());
        let seeds: BTreeSet<u64> = all
            .iter()
            .map(|one| one.job(0, SCORED, 0).unwrap().spec.seed)
            .collect();
        assert_eq!(seeds.len(), all.len(), "two names have one hash: rename one");
    }

    #[test]
    fn there_are_at_least_as_many_healthy_worlds() {
        let healthy = |one: &&Scenario| match one.suite {
            Suite::Healthy | Suite::Rough | Suite::Imbalance => true,
            Suite::Overlap | Suite::Undeclared => one.expect.is_empty(),
            _ => false,
        };
        let all = all();
        let count = all.iter().filter(healthy).count();
        assert!(2 * count >= all.len(), "{count} of {}", all.len());
    }
}
