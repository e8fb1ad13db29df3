//! Times in which a node was not watched: absence of data is never health.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::id::NodeId;
use crate::time::Time;

/// Gaps that are kept; later ones only lengthen the last.
const MAX_GAPS: usize = 256;

/// A time in which a node was not watched.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Unwatched {
    pub node: NodeId,
    pub from: Time,
    pub to: Time,
    pub why: Cow<'static, str>,
}

/// All of them, in the order in which they ended.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Gaps(Vec<Unwatched>);

impl Gaps {
    /// Adds a gap. One that touches the last of the same node lengthens it, and so does one too many.
    pub fn add(&mut self, node: &NodeId, from: Time, to: Time, why: &'static str) {
        let full = self.0.len() >= MAX_GAPS;
        match self.0.last_mut() {
            Some(last) if full || last.node == *node && last.to >= from => last.to = to,
            _ => self.0.push(Unwatched {
                node: node.clone(),
                from,
                to,
                why: Cow::Borrowed(why),
            }),
        }
    }

    /// Those that are kept.
    pub fn iter(&self) -> std::slice::Iter<'_, Unwatched> {
        self.0.iter()
    }
}
