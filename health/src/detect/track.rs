//! What the space axis knows of one rank, and what can be shown for it.

use super::claim::Outcome;
use super::cusum::Cusum;
use super::noise::Window;
use super::roster::Roster;
use super::tally::Tally;
use crate::policy::Thresholds;
use crate::verdict::{Cause, Evidence, Severity};

/// What is known of one rank.
#[derive(Debug, Default)]
pub struct Track {
    pub cusum: Cusum,
    pub window: Window,
    pub tally: Tally,
    /// The latest rows of the warm-up, each with the tally before it: tested once it is known that they were steady.
    pub warm_up: Vec<(f64, Tally)>,
    /// The tally before the rank's first row, and when its tests began after warm-up.
    pub born: Tally,
    pub tested_from: Option<Tally>,
    pub raised: Option<Raised>,
}

impl Track {
    /// When a change that the test dates to `start` began: if the rank has been slow in every test, and was as slow
    /// while it warmed up, it was born slow.
    pub fn onset(&self, start: Tally, alternative: f64) -> Tally {
        let never_fast = self.tested_from.is_some_and(|tests| tests.rows == start.rows);
        let warm_up = start.mean_since(&self.born, |tally| tally.x);
        if never_fast && start.rows > 0 && warm_up >= alternative / 2.0 {
            self.born
        } else {
            start
        }
    }
}

/// A rank that was found slow.
#[derive(Clone, Debug)]
pub struct Raised {
    pub start: Tally,
    pub alternative: f64,
    pub severity: Severity,
    pub step: u64,
    pub cause: Cause,
    pub few_peers: bool,
}

/// What the whole job lost between two tallies of its slow rank, rank-seconds.
pub fn lost(now: &Tally, start: &Tally, roster: &Roster) -> f64 {
    (now.gain_s - start.gain_s) * f64::from(roster.world_size)
}

/// A culprit is the one that the others wait for: it waits at most a share of what they do. Where nobody waits to
/// speak of there is nothing to compare.
pub fn waits_less_than_peers(track: &Track, start: &Tally, limits: &Thresholds) -> bool {
    let own = track.tally.mean_since(start, |tally| tally.wait_s);
    let peers = track.tally.mean_since(start, |tally| tally.peers_wait_s);
    let step = track.tally.mean_since(start, |tally| tally.dur_s);
    own <= limits.straggler.consistency_wait_ratio * peers.max(0.1 * step)
}

/// What a slow rank's verdict rests on.
pub fn evidence(now: &Tally, start: &Tally, few_peers: bool) -> Vec<Evidence> {
    let entries = Some((start.entry, now.entry));
    let mut evidence = vec![
        Evidence {
            what: "self_time_s".into(),
            value: now.mean_since(start, |tally| tally.self_s),
            peers: Some(now.mean_since(start, |tally| tally.peers_self_s)),
            entries,
        },
        Evidence {
            what: "unexplained_wait_s".into(),
            value: now.mean_since(start, |tally| tally.wait_s).max(0.0),
            peers: Some(now.mean_since(start, |tally| tally.peers_wait_s)),
            entries,
        },
    ];
    if few_peers {
        evidence.push(Evidence {
            what: "low_coverage".into(),
            value: 1.0,
            peers: None,
            entries: None,
        });
    }
    evidence
}

/// What there is to say of a slow rank from `start` to `end`.
pub fn outcome(end: &Tally, start: &Tally, few_peers: bool, roster: &Roster) -> Outcome {
    Outcome {
        lost_rank_s: lost(end, start, roster),
        slowdown_ratio: Some(end.slowdown_since(start)),
        impact_ratio: Some(end.impact_since(start)),
        evidence: evidence(end, start, few_peers),
    }
}
