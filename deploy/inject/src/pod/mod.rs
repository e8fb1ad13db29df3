//! What Paceline changes in a pod (`injection`): the `containers`, volumes and variables that are put in, into the pod's
//! own `resources` where it has such, beside the container that trains (`trainer`), on a `platform` that has images; how
//! what is there already is completed (`merge`), and what of it is in a pod later ([`presence`]).

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
