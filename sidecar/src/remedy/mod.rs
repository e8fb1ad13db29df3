//! Takes actions on verdicts, if requested. [`paceline_health::remedy`] decides on them, and this module carries them
//! out.
//!
//! [`warden`] runs in the aggregator. It queries the guard, keeps the [`books`], and carries out decisions. Actions on
//! nodes are sent to their sidecars as an [`order::Order`]. A node's sidecar executes them in [`hand::Hand`]: it sends
//! a signal to trainers, or informs the launchers that the command will be stopped.

pub mod books;
pub mod hand;
pub mod options;
pub mod order;
mod requeue;
pub mod warden;

pub use options::{RemedyOptions, RemedyPlan};
