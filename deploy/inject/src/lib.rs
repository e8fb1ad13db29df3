//! Puts Paceline into a pod: JSON in, JSON out. No cluster, clock, file or network is known here, so that the webhook,
//! `paceline inject-manifest` and a test come to the same pod.
//!
//! The pod is raw JSON and stays so: fields that nobody here has heard of go through untouched. What is there already is
//! completed and repaired, never doubled: injecting twice is injecting once.
//!
//! - [`request`]: what annotations ask for.
//! - [`identity`]: which job a pod belongs to, and where its first pod is, by the operator that made it.
//! - [`manifest`]: where the pod templates are in a job's manifest.
//! - [`pod`]: the change itself; [`presence`]: whether it is in a pod that is there; [`remediator`]: how a pod reaches the
//!   cluster's remediator.
//! - [`quantity`]: which amounts of CPU and memory make sense.
//! - [`patch`]: the difference between two values as a JSON patch (RFC 6902).

pub mod identity;
pub mod manifest;
pub mod patch;
pub mod pod;
pub mod quantity;
pub mod request;

pub use identity::Identity;
pub use pod::{Injected, Refusal, inject, presence, remediator};
pub use request::{Mode, Request, Settings, is_wanted};

/// Annotations and labels of ours begin so.
pub const PREFIX: &str = "paceline.dev/";
/// Opts a pod in (`true`, `sidecar`, `wrap`) or out (`false`), as an annotation or a label.
pub const INJECT: &str = "paceline.dev/inject";
/// Written to a pod that was injected: the mode it came to.
pub const INJECTED: &str = "paceline.dev/injected";

/// Something that a person should know of an injection that was done all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Which kind, for counting: lower case with dashes.
    pub code: &'static str,
    /// In words.
    pub says: String,
}

impl Note {
    pub(crate) fn new(code: &'static str, says: impl Into<String>) -> Note {
        Note {
            code,
            says: says.into(),
        }
    }
}

impl std::fmt::Display for Note {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.says, self.code)
    }
}
