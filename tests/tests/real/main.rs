//! Real training jobs under `paceline run`: PyTorch, torchrun, gloo. Ignored in the inner loop; `tests/run` sets up the
//! requirements and runs them one after the other (they measure time on few cores).

#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

mod bad_days;
mod collectives;
mod elastic;
mod ends;
mod hosts;
mod job;
mod launchers;
mod nodes;
mod remedies;
mod slow_rank;
mod told;
