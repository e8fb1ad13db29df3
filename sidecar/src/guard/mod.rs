//! Isolates ZeroMQ from the network, because its parser must never process unauthenticated input (docs/adr/0008). A
//! network stream is sealed with the job's key, and only its contents are forwarded to a Unix socket that only this
//! user can reach.
//!
//! - [`den`]: the directory of those sockets.
//! - [`gate`]: the aggregator's listener. Each connection must prove in time that it has the key; others are rejected
//!   and counted.
//! - [`tunnel`]: the handshake and the forwarding, for both ends.
//! - [`hall`]: the accepted peers, merged into one queue.
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

/// The purpose of these sealed streams. It separates telemetry streams from preflight streams.
pub const PURPOSE: &str = "telemetry";

/// The job's key, if it has one.
#[derive(Clone, Debug)]
pub struct JobKey {
    /// The key that seals streams.
    pub key: Key,
    /// Set if no other process can have this key, with the reason. This process's own sidecar and aggregator still
    /// share the key.
    pub nobody_else: Option<String>,
}

/// Returns true if the key file may be missing or invalid. This is the case for a Secret that a pod does not wait for
/// (PACELINE_KEY_OPTIONAL).
pub fn is_optional() -> bool {
    std::env::var("PACELINE_KEY_OPTIONAL").is_ok_and(|word| word == "true")
}

impl JobKey {
    /// Returns the key that all of the job shares, or a random key if there is none.
    ///
    /// # Errors
    /// [`KeyError`] if a requested key file is invalid, unless PACELINE_KEY_OPTIONAL allows that, or if the system
    /// provides no random numbers.
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
