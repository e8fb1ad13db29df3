//! Progress of ranks: silent ranks, hangs, deaths, unreachable nodes, and ranks that have not arrived.

pub mod arrivals;
mod entered;
mod hang_cause;
pub mod job_end;
mod progress;
mod ras;
pub mod silence;
mod stacks;
mod standstill;
mod unlaunched;
pub mod unreachable_node;
