//! What is done about a verdict, where somebody has asked for that: decided by [`paceline_health::remedy`], carried out here.
//!
//! [`warden`] stands in the aggregator: it asks the guard, keeps the [`books`], and leads what was decided through its
//! course. What it wants done on the nodes travels down the link as an [`order::Order`]; a node's sidecar has a
//! [`hand::Hand`] that does it: a signal to trainers, or word to the launchers that the command will be ended.

pub mod books;
pub mod hand;
pub mod options;
pub mod order;
mod requeue;
pub mod warden;

pub use options::{RemedyOptions, RemedyPlan};
