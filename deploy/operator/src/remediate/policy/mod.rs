//! Decides what to do about a node, without access to a clock, socket or cluster. Times are arguments, in milliseconds
//! since 1970.
//!
//! - [`rules`]: how far each finding goes, and the limits.
//! - [`incident`]: reports about a node.
//! - [`health`]: the state of a node. It is the status of the node's NodeHealth and survives restarts.
//! - [`census`]: nodes out of service in the cluster, and the breaker.
//! - [`mod@step`]: determines the next state of a node. `wanted` determines what the node's faults require, [`drain`]
//!   handles evictions, and [`recovery`] handles the return to service.
//! - [`marks`]: the marks of a node, and the patch that sets them.
//!
//! A node's state is level-triggered. It follows from the node's NodeHealth and the Node, never from the order of
//! reports. A decision is recorded before it is applied, so that the next leader can continue.

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
