//! Actions on verdicts, if requested: decided by [`paceline_health::remedy`], carried out here.
//!
//! [`warden`] runs in the aggregator: it queries the guard, keeps the [`books`], and carries out decisions. Actions on
//! nodes are sent down the link as an [`order::Order`]; a node's sidecar executes them in [`hand::Hand`]: a signal to
//! trainers, or a notice to the launchers that the command will be stopped.

pub mod books;
pub mod hand;
pub mod options;
pub mod order;
mod requeue;
pub mod warden;

pub use options::{RemedyOptions, RemedyPlan};
