//! Problems of a requested source.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// See [`super::Event::Source`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceState {
    /// The source, as in [`super::Agent::sources`]: `step-log`, `nccl-inspector`.
    pub source: Arc<str>,
    /// Why it provides no data, as text for people. Empty if it works again.
    pub trouble: Arc<str>,
}
