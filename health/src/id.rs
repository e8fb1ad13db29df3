//! Identifiers of ranks, nodes, GPUs and jobs. Names are reference-counted, so that frames need no allocation for them.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A process of the training job, identified by its global number in the current epoch, 0 to world size - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rank(pub u32);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Arc<str>);

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                $name(Arc::from(text))
            }
        }

        impl $name {
            /// Returns the name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name! {
    /// A machine (or pod) of the job, by the name its scheduler uses.
    NodeId
}
name! {
    /// A GPU, identified by its UUID as in NVML (`GPU-…`), never by an index.
    GpuId
}
impl GpuId {
    /// Formats the UUID as NVML does, from its 16 bytes: `GPU-` and 36 characters.
    pub fn from_uuid_bytes(bytes: [u8; 16]) -> GpuId {
        let number = u128::from_be_bytes(bytes);
        let group =
            |from: u32, digits: u32| (number >> (128 - 4 * (from + digits))) & ((1 << (4 * digits)) - 1);
        let (a, b, c, d, e) = (
            group(0, 8),
            group(8, 4),
            group(12, 4),
            group(16, 4),
            group(20, 12),
        );
        GpuId(format!("GPU-{a:08x}-{b:04x}-{c:04x}-{d:04x}-{e:012x}").into())
    }
}

name! {
    /// The job, identified by its run id or scheduler id.
    JobId
}
