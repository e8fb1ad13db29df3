//! The simulator. It produces frames like those of a real job, in virtual time.
//!
//! It shares no code with the detector. The ground truth is what it has simulated.

pub mod chance;
pub mod fault;
mod link;
pub mod spec;
mod step;
pub mod telemetry;
mod text;
mod voice;
pub mod world;

pub use fault::Fault;
pub use fault::truth::{Expected, OwnCost, Truth};
pub use spec::shape::{Target, When};
pub use spec::{SpecError, WorldSpec};
pub use telemetry::gpu::GpuScript;
pub use text::ScriptError;
pub use world::World;
