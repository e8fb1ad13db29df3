//! Decides what to do about a node, without access to a clock, socket or cluster. Times are arguments, in milliseconds
//! since 1970.
//!
//! - [`rules`]: how far each finding goes, and the limits.
//! - [`incident`]: reports about a node.
//! - [`health`]: the state of a node; it is the status of its NodeHealth and survives restarts.
//! - [`census`]: nodes out of service in the cluster, and the breaker.
//! - [`mod@step`]: the next state of a node; `wanted`: what its faults require; [`drain`]: evictions; [`recovery`]: the
//!   return to service.
//! - [`marks`]: the marks of a node, and the patch that sets them.
//!
//! A node's state is level-triggered: it follows from its NodeHealth and the Node, never from the order of reports. A
//! decision is recorded before it is applied, so that the next leader can continue.

pub mod census;
pub mod drain;
pub mod health;
pub mod incident;
pub mod marks;
pub mod recovery;
pub mod rules;
pub mod step;
mod wanted;

pub use census::{Breaker, Census};
pub use health::{Health, State};
pub use incident::{Incident, Report};
pub use marks::{Marks, NodeView};
pub use rules::{Mode, Rules, Rung};
pub use step::{Scene, step};

#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;
