//! Each node's side of a preflight. The `session` with the first node ends with the report. The `tools` read the node's
//! hardware and measure its GPUs or its CPU. The first node is a participant too.

mod session;
mod tools;

pub use session::{Me, attend};
pub(super) use session::{decode, encode};
pub use tools::{Machine, Tools};
