//! The aggregator's side of the numbering. It takes each frame once and in order. Frames that are permanently missing
//! are counted.

use std::collections::BTreeMap;

use paceline_health::Frame;
use paceline_health::id::NodeId;
use serde::{Deserialize, Serialize};

use super::spool::last_seq;
use super::wire::{Batch, decode_event};
use crate::warn;

/// Maximum number of incarnations to remember. Further ones are refused.
const MAX_LANES: usize = 1 << 18;

/// The result of a batch.
#[derive(Debug, Default, PartialEq)]
pub struct Taken {
    /// New frames in order.
    pub frames: Vec<Frame>,
    /// The last frame of this incarnation that was received or is permanently lost. It is to be acknowledged.
    pub upto: u64,
}

/// The progress of each incarnation of each node's sidecar.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Intake {
    lanes: BTreeMap<NodeId, BTreeMap<u64, u64>>,
    count: usize,
    duplicates: u64,
    lost: u64,
    unreadable: u64,
}

impl Intake {
    /// Takes the new frames of a batch. If frames before the batch are missing but may still arrive, it is skipped
    /// until it is sent again.
    pub fn offer(&mut self, batch: &Batch) -> Taken {
        let last = self.upto(&batch.node, batch.agent);
        let end = last_seq(batch);
        let total = batch.events.len() as u64;
        if batch.after > last || batch.first_seq == 0 || end < last || total == 0 {
            self.duplicates += if end <= last { total } else { 0 };
            return Taken {
                frames: Vec::new(),
                upto: last,
            };
        }
        if !self.advance(&batch.node, batch.agent, end.max(last)) {
            return Taken {
                frames: Vec::new(),
                upto: last,
            };
        }
        self.lost += batch.first_seq.saturating_sub(last + 1);
        let mut frames = Vec::new();
        for (seq, blob) in (batch.first_seq..=end).zip(&batch.events) {
            if seq <= last {
                self.duplicates += 1;
                continue;
            }
            match decode_event(batch, seq, blob) {
                Ok(frame) => frames.push(frame),
                Err(_) => self.unreadable += 1,
            }
        }
        Taken {
            frames,
            upto: end.max(last),
        }
    }

    /// Records a frame that is already in the journal.
    pub fn restore(&mut self, frame: &Frame) {
        let last = self.upto(&frame.node, frame.agent);
        self.advance(&frame.node, frame.agent, frame.seq.max(last));
    }

    /// Returns the last frame of an incarnation that was received or is permanently lost, or zero if there is none.
    pub fn upto(&self, node: &NodeId, agent: u64) -> u64 {
        self.lanes
            .get(node)
            .and_then(|agents| agents.get(&agent))
            .copied()
            .unwrap_or(0)
    }

    fn advance(&mut self, node: &NodeId, agent: u64, to: u64) -> bool {
        if let Some(last) = self.lanes.get_mut(node).and_then(|agents| agents.get_mut(&agent)) {
            *last = to;
            return true;
        }
        if self.count >= MAX_LANES {
            warn::once(
                "incarnations",
                format_args!("sidecars were started {MAX_LANES} times: new ones are no longer accepted"),
            );
            return false;
        }
        self.count += 1;
        self.lanes.entry(node.clone()).or_default().insert(agent, to);
        true
    }

    /// Returns the number of frames received more than once.
    pub fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Returns the number of frames that their sender no longer had.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Counts an unreadable message.
    pub fn note_unreadable(&mut self) {
        self.unreadable += 1;
    }

    /// Returns the number of events and messages that could not be decoded.
    pub fn unreadable(&self) -> u64 {
        self.unreadable
    }
}
