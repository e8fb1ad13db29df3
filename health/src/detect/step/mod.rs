//! One step: its samples by rank, where each rank stands, and what kind of step it was.

pub mod board;
pub mod history;
pub mod infer;
pub mod kinds;
pub mod path;
pub mod plan;
#[cfg(test)]
pub mod plan_tests;
pub mod rows;
pub mod tempo;
pub mod waits;
pub mod work;
