//! Each node's side of a preflight: its `session` with the first node, which ends with the report, and the `tools` that
//! read its hardware and measure its GPUs or its CPU. The first node is a participant too.

mod session;
mod tools;

pub use session::{Me, attend};
pub(super) use session::{decode, encode};
pub use tools::{Machine, Tools};
