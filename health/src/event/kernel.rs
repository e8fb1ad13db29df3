//! Whether a node's kernel log can be read, and which boot it is of.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// See [`super::Event::Kernel`]. What the log says of a GPU comes as [`super::Event::GpuFault`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelWatch {
    /// What is read, `/dev/kmsg` or a file.
    pub path: Arc<str>,
    /// The boot that is running, as the kernel names it; empty: it does not say.
    pub boot: Arc<str>,
    /// Whether it can be read.
    pub state: KernelAccess,
    /// Records that the kernel had overwritten before they were read, since the watch began.
    pub lost: u64,
    /// What was answered when it cannot be read, for people.
    pub text: Arc<str>,
}

/// Whether a kernel log can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelAccess {
    /// It is read.
    Readable,
    /// This user may not read it; NVML's events are all there is.
    Denied,
    /// There is none.
    Missing,
    /// Reading it failed in another way.
    Failing,
}
