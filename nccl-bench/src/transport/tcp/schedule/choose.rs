//! Selects the algorithm by size, with a table from measurements (docs/measurements/allreduce.md explains how to repeat
//! them).

use serde::{Deserialize, Serialize};

use crate::collective::{Collective, Plan};

/// A way to do a collective. One that there is not for a collective or a number of ranks is replaced by its nearest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// Fewest steps: recursive doubling, a binomial tree, direct exchange.
    Doubling,
    /// Rabenseifner's.
    Halving,
    /// Fewest bytes: a ring, or a chain.
    Ring,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Algorithm; 3] = [Algorithm::Doubling, Algorithm::Halving, Algorithm::Ring];
}

/// Size in bytes up to which the number of steps matters more than the number of bytes.
const SMALL: u64 = 32 << 10;

/// Returns the fastest algorithm according to the measurements.
pub fn choose(plan: &Plan) -> Algorithm {
    let small = plan.bytes() <= SMALL;
    match plan.collective {
        _ if small => Algorithm::Doubling,
        Collective::AllReduce if plan.ranks.is_power_of_two() => Algorithm::Halving,
        _ => Algorithm::Ring,
    }
}
