//! Tests of the policy on simulated nodes.

mod cordon;
mod crd;
mod guard;
mod property;
mod recovery;
mod step;
