//! Times in which a node was not watched: absence of data is never health.

use crate::id::NodeId;
use crate::time::Time;

/// Gaps that are kept; later ones only lengthen the last.
const MAX_GAPS: usize = 256;

/// A time in which a node was not watched.
#[derive(Clone, Debug)]
pub struct Unwatched {
    pub node: NodeId,
    pub from: Time,
    pub to: Time,
    pub why: &'static str,
}

/// Adds a gap. One that touches the last of the same node lengthens it, and so does one too many.
pub fn push_gap(gaps: &mut Vec<Unwatched>, gap: Unwatched) {
    let full = gaps.len() >= MAX_GAPS;
    match gaps.last_mut() {
        Some(last) if full || last.node == gap.node && last.to >= gap.from => last.to = gap.to,
        _ => gaps.push(gap),
    }
}
