//! Who is who: ranks, nodes, GPUs, jobs. Names are shared, so that a frame costs no allocation for them.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A process of the training job by its global number in the current epoch, 0 to world size - 1.
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
            /// The name as text.
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
    /// A GPU by its UUID as NVML writes it (`GPU-…`), never by an index.
    GpuId
}
name! {
    /// The job, by its run id or scheduler id.
    JobId
}
