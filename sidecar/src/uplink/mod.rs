//! From a sidecar to the aggregator: nothing is lost but what is counted, nothing counted twice.
//!
//! The protocol is go-back-N over numbered frames with cumulative acknowledgements; [`session`] and [`intake`] are its
//! two ends and know neither socket nor clock. [`link`] is the only file that knows ZeroMQ. [`pack`] makes messages
//! small.

mod blob;
pub mod bundle;
pub mod intake;
pub mod link;
pub mod pack;
pub mod session;
pub mod spool;
pub mod wanted;
pub mod wire;

pub use intake::Intake;
pub use session::{Heard, Uplink};
