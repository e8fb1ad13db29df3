//! Injects Paceline into a pod, with JSON as input and output. This crate does not access the cluster, clock, files or
//! network, so the webhook, `paceline inject-manifest` and the tests produce the same pod.
//!
//! The pod stays raw JSON, so unknown fields pass through untouched. Parts that already exist are completed and
//! repaired, but never duplicated, so injection is idempotent.
//!
//! - [`request`]: settings from annotations.
//! - [`identity`]: the job of a pod and the address of the job's first pod, derived according to the operator that
//!   created the pod.
//! - [`manifest`]: where the pod templates are in a job's manifest.
//! - [`pod`]: the change itself. [`presence`] checks whether an existing pod has the change. [`remediator`] defines how
//!   a pod reaches the cluster's remediator.
//! - [`quantity`]: which quantities of CPU and memory are plausible.
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

/// The prefix of Paceline's annotations and labels.
pub const PREFIX: &str = "paceline.dev/";
/// Annotation or label that opts a pod in (`true`, `sidecar`, `wrap`) or out (`false`).
pub const INJECT: &str = "paceline.dev/inject";
/// Annotation of an injected pod with the mode that was used.
pub const INJECTED: &str = "paceline.dev/injected";

/// A warning about an injection that was performed nevertheless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The kind of warning, for metrics. It is in lower case with dashes.
    pub code: &'static str,
    /// The message.
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
