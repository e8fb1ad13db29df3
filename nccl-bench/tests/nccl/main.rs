//! Tests NCCL's transport and GPU measurements with libraries that compute on the host (tests/fake-nccl). The tests
//! cover everything that can be tested on a machine without a GPU.

#![allow(clippy::unwrap_used)] // A test that cannot continue fails.

mod blocking;
mod collectives;
mod failures;
mod processes;
mod stage;
mod work;
