//! One step: its samples by rank, where each rank stands, and what kind of step it was.

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
