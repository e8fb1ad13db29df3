//! What stands between the network and ZeroMQ, whose parser must never meet a stranger (docs/adr/0008): a stream of a
//! network is sealed with the job's key, and only what is inside goes on to a Unix socket that this user alone can reach.
//!
//! - [`den`]: the directory of those sockets.
//! - [`gate`]: at the aggregator: who knocks proves the key, in time, or is turned away and counted.
//! - [`tunnel`]: handshake and carrying, for both ends.
//! - [`hall`]: who was let in, all of them as one queue.
//! - [`conduit`]: a sealed stream as messages, with [`zmtp`] inside it, in one task and with one descriptor.

pub mod conduit;
pub mod den;
pub mod gate;
pub mod hall;
pub mod tunnel;
pub mod zmtp;

use std::path::Path;

use paceline_health::id::JobId;
pub use paceline_seal::{Key, KeyError};

/// What streams are sealed for: a stream of the preflight is none of telemetry.
pub const PURPOSE: &str = "telemetry";

/// The job's key, as far as there is one.
#[derive(Clone, Debug)]
pub struct JobKey {
    /// What streams are sealed with.
    pub key: Key,
    /// Why no other process can have it, if so: this process's own sidecar and aggregator still can.
    pub nobody_else: Option<String>,
}

/// Whether a key file may be missing, or be no good: a Secret that a pod does not wait for (PACELINE_KEY_OPTIONAL).
pub fn is_optional() -> bool {
    std::env::var("PACELINE_KEY_OPTIONAL").is_ok_and(|word| word == "true")
}

impl JobKey {
    /// The key that everybody of the job has; else one of chance, which nobody has.
    ///
    /// # Errors
    /// [`KeyError`] for a key file that was asked for and is no good, unless PACELINE_KEY_OPTIONAL says that it may be so; and
    /// when the system gives no random numbers.
    pub fn of(job: &JobId, file: Option<&Path>) -> Result<JobKey, KeyError> {
        let variable = |name: &str| std::env::var(name).ok();
        let asked = file.is_some() || variable("PACELINE_KEY_FILE").is_some_and(|path| !path.is_empty());
        let (key, nobody_else) = match Key::find(file, variable) {
            Ok(key) => (key, None),
            Err(error) if asked && !is_optional() => return Err(error),
            Err(error) => (Key::of_chance()?, Some(error.to_string())),
        };
        Ok(JobKey {
            key: key.of_job(job.as_str()),
            nobody_else,
        })
    }
}
