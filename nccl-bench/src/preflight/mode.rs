//! Time limits of a preflight. A quick one ends within 60 s and a full one within 3 min, for any number of nodes.

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

/// Limits of the phases and of the measurements. There are at most three rounds of pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Time until all nodes are connected.
    pub rendezvous: Duration,
    /// Time for the snapshot.
    pub snapshot: Duration,
    /// Time for one measurement of GPUs or CPUs.
    pub work: Duration,
    /// Time for the all-reduce inside nodes.
    pub local: Duration,
    /// Time for one round of pairs.
    pub pairs: Duration,
    /// Time for the all-reduce over all nodes.
    pub all: Duration,
    /// Time for the whole preflight.
    pub total: Duration,
    /// Number of passes of GPU or CPU measurements.
    pub passes: u32,
    /// Largest message between nodes over TCP, in bytes.
    pub bytes: u64,
    /// Largest message over NCCL, in bytes. It is large because small messages measure delay rather than bandwidth.
    pub nccl_bytes: u64,
    /// True if each rail is measured with NCCL too.
    pub rails: bool,
    /// Minimum duration of one measurement.
    pub pass: Duration,
}

impl Mode {
    /// Returns the name, which is `quick` or `full`.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Quick => "quick",
            Mode::Full => "full",
        }
    }

    /// Returns the limits of this mode. They add up to less than the total even with all rounds of pairs and one repeat
    /// of the work. Further repeats use the remaining time.
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
            // The work is counted twice, because it is repeated once for suspects.
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
