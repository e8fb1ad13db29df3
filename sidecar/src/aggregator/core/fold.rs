//! What an aggregator knows that a journal can give back.

use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_health::event::Event;
use paceline_health::id::NodeId;
use paceline_health::{Detector, Entry, Frame, Policy, Time};

use super::OWN_AGENT;
use crate::aggregator::inject::Injector;
use crate::sink::metrics::Metrics;
use crate::uplink::Intake;

/// A node, as far as its sidecar's coming and going is concerned.
#[derive(Debug, Default)]
pub(super) struct Presence {
    agent: u64,
    pub gone: bool,
}

/// What a journal that is continued gives back.
pub(super) struct Fold {
    pub detector: Detector,
    pub intake: Intake,
    pub injector: Injector,
    pub metrics: Metrics,
    pub nodes: BTreeMap<NodeId, Presence>,
    pub last: Option<(u64, Time)>,
    /// Entries are missing that were acknowledged: the disk would not take them, or gave them back damaged.
    pub has_holes: bool,
    pub own_seq: u64,
    /// What flags and files said at the latest start.
    pub started: BTreeMap<Arc<str>, f64>,
    /// What files said differently when they were read again.
    pub reloaded: BTreeMap<Arc<str>, f64>,
}

impl Fold {
    /// Of an empty journal.
    pub fn new() -> Fold {
        Fold {
            detector: Detector::new(Policy::default()),
            intake: Intake::default(),
            injector: Injector::default(),
            metrics: Metrics::default(),
            nodes: BTreeMap::new(),
            last: None,
            has_holes: false,
            own_seq: 0,
            started: BTreeMap::new(),
            reloaded: BTreeMap::new(),
        }
    }

    /// The next entry.
    pub fn take(&mut self, entry: &Entry) {
        let frame = &entry.frame;
        let at = self.last.map_or(entry.at_ns, |(_, last)| last.max(entry.at_ns));
        self.has_holes |= self.last.is_some_and(|(last, _)| entry.n > last + 1);
        self.last = Some((entry.n, at));
        if frame.agent == OWN_AGENT {
            self.own_seq = self.own_seq.max(frame.seq);
        } else {
            self.intake.restore(frame);
        }
        if let Event::Policy(change) = &frame.event {
            self.remember(change);
        }
        self.injector.learn(frame);
        presence(&mut self.nodes, frame);
        self.metrics.observe(frame, 0.0);
        self.detector.observe(at, frame);
    }
}

/// Remembers who is there.
pub(super) fn presence(nodes: &mut BTreeMap<NodeId, Presence>, frame: &Frame) {
    if frame.agent == OWN_AGENT {
        return;
    }
    let node = nodes.entry(frame.node.clone()).or_default();
    match &frame.event {
        Event::Bye(_) => node.gone |= node.agent == frame.agent,
        Event::Agent(_) => {
            *node = Presence {
                agent: frame.agent,
                gone: false,
            }
        }
        // The beginning of its life was lost; the rest counts as well.
        _ if node.agent == 0 => node.agent = frame.agent,
        _ => {}
    }
}
