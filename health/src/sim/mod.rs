//! The simulator: the same frames on virtual time.
//!
//! It shares no code with the detector: what it calls slow, it made slow.

pub mod chance;
pub mod gpu;
mod text;

pub use gpu::GpuScript;
pub use text::ScriptError;
