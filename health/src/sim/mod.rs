//! The simulator: the same frames on virtual time.
//!
//! It shares no code with the detector: what it calls slow, it made slow.

pub mod chance;
pub mod fault;
pub mod gpu;
mod link;
mod pace;
pub mod spec;
mod text;
pub mod truth;
mod voice;
pub mod world;

pub use fault::Fault;
pub use gpu::GpuScript;
pub use spec::{SpecError, WorldSpec};
pub use text::ScriptError;
pub use truth::Truth;
pub use world::World;
