//! What is to be done about a node, decided: no clock, socket or cluster is known here. Times are milliseconds since 1970 and come in.
//!
//! - [`rules`]: how far each finding goes, how much may be done at all.
//! - [`incident`]: what was heard about a node.
//! - [`health`]: all that is known of a node; it is the status of its NodeHealth and outlives us.
//! - [`census`]: what is out of service everywhere, and the breaker.
//! - [`mod@step`]: the next state of a node; `wanted`: what its faults ask for; [`drain`]: its time; [`recovery`]: how trust returns.
//! - [`marks`]: how a node should look, and the patch that makes it so.
//!
//! A node's state is level-triggered: it follows from what stands in its NodeHealth and on the node, never from the order in which
//! things were heard. What is decided is written down before it is done, so that whoever comes next goes on from there.

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
mod cordon_tests;
#[cfg(test)]
mod crd_tests;
#[cfg(test)]
mod guard_tests;
#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod recovery_tests;
#[cfg(test)]
mod step_tests;
#[cfg(test)]
mod world;
