//! Causes of slowness: readings of GPUs and hosts, the table of causes, and preflight results.

mod activity;
mod cause_rules;
pub mod causes;
pub mod facts;
mod gpus;
mod hosts;
pub mod preflight_evidence;
pub mod series;
