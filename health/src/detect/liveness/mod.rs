//! Who moves: silent ranks, hangs, deaths, unreachable nodes, and ranks that have not arrived.

pub mod arrivals;
pub mod blind;
mod front;
pub mod job_end;
mod ras;
pub mod silence;
mod standstill;
