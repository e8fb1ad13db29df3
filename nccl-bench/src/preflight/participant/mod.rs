//! Each node's side of a preflight: its `session` with the first node, which ends with the report, and the `tools` by
//! which it reads its hardware and lets its GPUs or its CPU work. The first node is a participant too.

mod session;
mod tools;

pub use session::{Me, attend};
pub(super) use session::{decode, encode};
pub use tools::{Machine, Tools};
