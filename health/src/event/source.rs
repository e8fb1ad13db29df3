//! What a source that somebody asked for cannot tell.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// See [`super::Event::Source`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceState {
    /// The source, as in [`super::Agent::sources`]: `step-log`, `nccl-inspector`.
    pub source: Arc<str>,
    /// Why nothing comes from it, for people; empty: it tells now.
    pub trouble: Arc<str>,
}
