//! Why something is slow: readings of GPUs and hosts, the table of causes, and what a preflight found.

mod activity;
pub mod before;
pub mod causes;
pub mod facts;
mod gpus;
mod hosts;
pub mod series;
mod signs;
