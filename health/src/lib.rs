//! The pure core of Paceline: what can be seen (events, frames), what is concluded (detector, verdicts), by which
//! rules (policy tables), and a simulator that makes the same frames.
//!
//! It knows no clock, file, socket, thread, chance or hash order; `clippy.toml` beside it bans them. The same policy
//! and the same journal give the same verdicts, byte for byte.

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
