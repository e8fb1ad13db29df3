//! Why something is slow: readings of GPUs and hosts, the table of causes, and what a preflight found.

mod activity;
mod cause_rules;
pub mod causes;
pub mod facts;
mod gpus;
mod hosts;
pub mod preflight_evidence;
pub mod series;
