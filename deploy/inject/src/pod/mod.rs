//! Paceline's changes to a pod (`injection`): the `containers`, volumes and variables that are added, within the pod's
//! own `resources` where it has them, beside the training container (`trainer`), on a `platform` with images;
//! completion of existing parts (`merge`); detection of what a pod contains later ([`presence`]).

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
