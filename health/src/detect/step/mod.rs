//! One step: its samples by rank, each rank's place in the layout, and the kind of step.

pub mod classifier;
pub mod history;
pub mod infer;
pub mod matrix;
pub mod path;
pub mod plan;
#[cfg(test)]
pub mod plan_tests;
pub mod rows;
pub mod step_time;
pub mod waits;
pub mod work;
