//! The pure core of Paceline: observations (events, frames), conclusions (detector, verdicts), rules (policy tables),
//! and a simulator that produces the same frames.
//!
//! It uses no clock, file, socket, thread, randomness or hash order; `clippy.toml` next to it bans them. The same
//! policy and the same journal give the same verdicts, byte for byte.

pub mod cadence;
pub mod codec;
pub mod detect;
pub mod event;
pub mod fault;
pub mod flight_recorder;
pub mod frame;
pub mod id;
pub mod policy;
pub mod preflight;
pub mod remedy;
pub mod report;
pub mod sim;
pub mod stats;
pub mod text;
mod time;
pub mod verdict;

pub use detect::Detector;
pub use frame::{Entry, Frame, Provenance};
pub use policy::Policy;
pub use time::Time;
