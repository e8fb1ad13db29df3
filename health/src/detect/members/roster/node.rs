//! One node, its current sidecar, and earlier ones.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::event::{Beat, Event};
use crate::time::Time;

/// Maximum number of earlier sidecar processes of a node whose late frames are distinguished from those of a new one.
/// Their numbers must be remembered because they have no order: a clock may have been stepped.
const MOST_PAST: usize = 8;

/// One node and its current sidecar.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Node {
    lane: Lane,
    /// Earlier sidecars, the latest last.
    past: VecDeque<Lane>,
    pub last_heard: Time,
    /// Start of the node's silence: its last report, plus the time since then in which the aggregator itself received
    /// nothing.
    pub silent_from: Time,
    pub left: bool,
    pub attached: bool,
    pub exit: Option<i32>,
    pub rack: Arc<str>,
    counters: Beat,
    /// Losses of earlier sidecar processes that are no longer remembered.
    lost_before: u64,
    dropped_before: (u64, u64),
}

/// The frames received from one sidecar process.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Lane {
    agent: u64,
    /// Highest sequence number received, and which of the last 64 were received.
    highest: u64,
    window: u64,
    received: u64,
}

impl Node {
    pub fn new(at: Time, agent: u64) -> Node {
        Node {
            lane: Lane::new(agent),
            past: VecDeque::new(),
            last_heard: at,
            silent_from: at,
            left: false,
            attached: false,
            exit: None,
            rack: Arc::from(""),
            counters: Beat::default(),
            lost_before: 0,
            dropped_before: (0, 0),
        }
    }

    /// Returns the number of missing frames of all sidecar processes. Numbers from the wire may have any value, so the
    /// sum must not overflow.
    pub fn lost(&self) -> u64 {
        let past = self.past.iter().map(Lane::lost);
        past.chain([self.lane.lost()])
            .fold(self.lost_before, u64::saturating_add)
    }

    /// Returns the number of records that the node's rings dropped, and of torn records.
    pub fn ring_losses(&self) -> (u64, u64) {
        let (dropped, torn) = self.dropped_before;
        (
            dropped.saturating_add(self.counters.ring_dropped),
            torn.saturating_add(self.counters.ring_torn),
        )
    }

    pub fn is_watched_by(&self, agent: u64) -> bool {
        self.lane.agent == agent
    }

    /// Returns true if this sidecar process monitored the node earlier and another one does now.
    pub fn is_past(&self, agent: u64) -> bool {
        !self.is_watched_by(agent) && self.past.iter().any(|lane| lane.agent == agent)
    }

    /// Returns true if a frame was received before.
    pub fn has_seen(&self, agent: u64, seq: u64) -> bool {
        let mut lanes = self.past.iter().chain([&self.lane]);
        lanes.any(|lane| lane.agent == agent && lane.has_seen(seq))
    }

    pub fn begin_incarnation(&mut self, at: Time, agent: u64) {
        let mut past = std::mem::take(&mut self.past);
        past.push_back(self.lane.clone());
        let mut lost_before = self.lost_before;
        while past.len() > MOST_PAST
            && let Some(oldest) = past.pop_front()
        {
            lost_before = lost_before.saturating_add(oldest.lost());
        }
        *self = Node {
            past,
            lost_before,
            dropped_before: self.ring_losses(),
            attached: self.attached,
            ..Node::new(at, agent)
        };
    }

    /// Takes a frame of the current sidecar process.
    pub fn on_event(&mut self, at: Time, seq: u64, event: &Event) {
        self.lane.accept(seq);
        (self.last_heard, self.silent_from) = (at, at);
        match event {
            Event::Beat(beat) => {
                self.counters = Beat {
                    ranks: Vec::new(),
                    ..beat.clone()
                }
            }
            Event::Exit(exit) => self.exit = Some(exit.code),
            Event::Bye(_) => self.left = true,
            Event::Attach(_) => self.attached = true,
            _ => {}
        }
    }

    /// Takes a frame of an earlier sidecar process.
    pub fn accept_late(&mut self, agent: u64, seq: u64) {
        if let Some(lane) = self.past.iter_mut().find(|lane| lane.agent == agent) {
            lane.accept(seq);
        }
    }
}

impl Lane {
    fn new(agent: u64) -> Lane {
        Lane {
            agent,
            highest: 0,
            window: 0,
            received: 0,
        }
    }

    fn lost(&self) -> u64 {
        self.highest.saturating_sub(self.received)
    }

    /// Returns true if a sequence number was received before. This is exact for the last 64 numbers; older ones count
    /// as received.
    fn has_seen(&self, seq: u64) -> bool {
        let behind = self.highest.checked_sub(seq);
        behind.is_some_and(|behind| behind >= 64 || self.window & (1 << behind) != 0)
    }

    /// Takes a new sequence number.
    fn accept(&mut self, seq: u64) {
        if seq > self.highest {
            let ahead = seq - self.highest;
            self.window = if ahead >= 64 { 1 } else { self.window << ahead | 1 };
            self.highest = seq;
        } else {
            self.window |= 1 << (self.highest - seq).min(63);
        }
        self.received += 1;
    }
}
