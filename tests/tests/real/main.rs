//! Tests real training jobs under `paceline run` with PyTorch, torchrun and gloo. They are ignored by default.
//! `tests/run` sets up the requirements and runs them one after the other, because they measure time on few cores.

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
