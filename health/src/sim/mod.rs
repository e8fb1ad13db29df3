//! The simulator: the same frames on virtual time.
//!
//! It shares no code with the detector: what it calls slow, it made slow.

// Until the whole of the spec is made.
#![allow(dead_code)]

pub mod chance;
pub mod fault;
mod fault_text;
pub mod gpu;
mod layout;
mod link;
mod pace;
pub mod shape;
pub mod spec;
mod spec_check;
mod spec_text;
mod text;
pub mod truth;
mod voice;
pub mod world;

pub use fault::Fault;
pub use gpu::GpuScript;
pub use shape::{Target, When};
pub use spec::{SpecError, WorldSpec};
pub use text::ScriptError;
pub use truth::{Expected, OwnCost, Truth};
pub use world::World;
