//! How long everything may take: quick within 60 s, full within 3 min, however many nodes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How thorough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Within a minute.
    #[default]
    Quick,
    /// Within three minutes: longer passes, larger messages.
    Full,
}

/// What each phase may take. Rounds of pairs are three at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Until all nodes are there.
    pub rendezvous: Duration,
    /// Of the snapshot.
    pub snapshot: Duration,
    /// Of the work of GPUs or CPUs, once.
    pub work: Duration,
    /// Of the all-reduce inside nodes.
    pub local: Duration,
    /// Of one round of pairs.
    pub pairs: Duration,
    /// Of the all-reduce over everything.
    pub all: Duration,
    /// Of all of it.
    pub total: Duration,
    /// Passes of the work.
    pub passes: u32,
    /// Of a message between nodes over TCP, bytes.
    pub bytes: u64,
    /// Of a message over NCCL: small ones say more of delays than of links.
    pub nccl_bytes: u64,
    /// Over NCCL each rail is measured too.
    pub rails: bool,
    /// How long messages are sent in one measurement, at least.
    pub pass: Duration,
}

impl Mode {
    /// `quick` or `full`.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Quick => "quick",
            Mode::Full => "full",
        }
    }

    /// Its limits. They add up to less than the total even if every round of pairs and one repeat of the work is needed;
    /// further repeats are for when time is left.
    pub fn limits(self) -> Limits {
        let s = Duration::from_secs;
        match self {
            Mode::Quick => Limits {
                rendezvous: s(10),
                snapshot: s(3),
                work: s(6),
                local: s(6),
                pairs: s(7),
                all: s(5),
                total: s(60),
                passes: 5,
                bytes: 4 << 20,
                nccl_bytes: 256 << 20,
                rails: false,
                pass: Duration::from_millis(1000),
            },
            Mode::Full => Limits {
                rendezvous: s(30),
                snapshot: s(10),
                work: s(20),
                local: s(15),
                pairs: s(20),
                all: s(20),
                total: s(180),
                passes: 24,
                bytes: 64 << 20,
                nccl_bytes: 1 << 30,
                rails: true,
                pass: Duration::from_millis(4000),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_fit_into_the_total() {
        for mode in [Mode::Quick, Mode::Full] {
            let limits = mode.limits();
            // Work is repeated once for suspects.
            let sum = limits.rendezvous
                + limits.snapshot
                + limits.work * 2
                + limits.local
                + limits.pairs * paceline_health::preflight::MAX_ROUNDS
                + limits.all;
            assert!(sum < limits.total, "{mode:?}: {sum:?}");
        }
    }
}
