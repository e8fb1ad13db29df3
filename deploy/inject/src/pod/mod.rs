//! Paceline's changes to a pod.
//!
//! - `injection`: the change as a whole.
//! - `containers`: the containers, volumes and variables that are added.
//! - `resources`: the pod's own resources, where it has them.
//! - `trainer`: the training container.
//! - `platform`: whether Paceline has images for the pod's platform.
//! - `merge`: the completion of parts that already exist.
//! - [`presence`]: which parts of Paceline an existing pod contains.

mod containers;
mod injection;
mod merge;
mod platform;
pub mod presence;
pub mod remediator;
mod resources;
pub(crate) mod trainer;

pub use containers::{FILES, KEY, PROGRAM, RINGS, RUN, is_key_secret, key_secret};
pub use injection::{Injected, Refusal, inject};
