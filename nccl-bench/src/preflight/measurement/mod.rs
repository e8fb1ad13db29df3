//! Measurements in a `group` of nodes or inside one node. They are the bus bandwidth of an all-reduce (`all_reduce`),
//! and the delay and loss between two nodes (`probe`, which uses the kernel's `tcp_info`). An NCCL rank is a process
//! (`rank_process`), which the node starts, monitors and stops (`rank_supervisor`).

mod all_reduce;
pub(super) mod group;
mod probe;
mod rank_process;
mod rank_supervisor;
mod tcp_info;

pub(super) use all_reduce::conditions;
pub use rank_process::main as rank_main;
pub use rank_supervisor::Launch;
pub(super) use rank_supervisor::Rank;
