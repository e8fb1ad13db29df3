//! Delivers frames from a sidecar to the aggregator. Every loss is counted, and no frame is counted twice.
//!
//! The protocol is go-back-N over numbered frames with cumulative acknowledgements. [`session`] and [`intake`] are its
//! two ends, without socket and clock. [`link`] is the only file that uses ZeroMQ. [`pack`] compresses messages.

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
