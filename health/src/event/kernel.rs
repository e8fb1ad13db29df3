//! Reports whether a node's kernel log can be read, and to which boot it belongs.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// See [`super::Event::Kernel`]. Log lines about a GPU become [`super::Event::GpuFault`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelWatch {
    /// The source, `/dev/kmsg` or a file.
    pub path: Arc<str>,
    /// The current boot id. Empty if not known.
    pub boot: Arc<str>,
    /// Whether the log can be read.
    pub state: KernelAccess,
    /// Records that the kernel had overwritten before they were read, since monitoring began.
    pub lost: u64,
    /// The error if it cannot be read, as text for people.
    pub text: Arc<str>,
}

/// Whether a kernel log can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelAccess {
    /// The log can be read.
    Readable,
    /// This user may not read the log, so only NVML events are available.
    Denied,
    /// The node has no kernel log.
    Missing,
    /// Reading failed for another reason.
    Failing,
}
