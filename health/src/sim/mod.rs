//! The simulator: the same frames on virtual time.
//!
//! It shares no code with the detector: what it calls slow, it made slow.

mod beside;
pub mod chance;
mod comms;
mod costs;
mod drag;
pub mod fault;
mod fault_text;
pub mod gpu;
mod hosts;
mod layout;
mod link;
mod meters;
mod pace;
mod roads;
pub mod shape;
pub mod spec;
mod spec_check;
mod spec_text;
mod telemetry;
mod text;
mod timeline;
pub mod truth;
mod voice;
mod work;
pub mod world;

pub use fault::Fault;
pub use gpu::GpuScript;
pub use shape::{Target, When};
pub use spec::{SpecError, WorldSpec};
pub use text::ScriptError;
pub use truth::{Expected, OwnCost, Truth};
pub use world::World;
