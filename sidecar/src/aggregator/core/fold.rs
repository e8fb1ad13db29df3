//! The part of an aggregator's state that can be restored from its journal.

use std::collections::BTreeMap;

use paceline_health::event::{Event, Thinned};
use paceline_health::id::NodeId;
use paceline_health::{Detector, Entry, Frame, Policy, Time};

use serde::{Deserialize, Serialize};

use super::changes::Said;
use super::{Aggregator, OWN_AGENT};
use crate::aggregator::inject::Injector;
use crate::aggregator::journal::Replay;
use crate::aggregator::journal::snapshot::{self, Header, Snapshot, Unfit};
use crate::sink::metrics::Metrics;
use crate::uplink::Intake;
use crate::warn;

/// Which incarnation of a node's sidecar has joined, and whether it has left.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Presence {
    agent: u64,
    pub gone: bool,
}

/// State restored from a journal that is continued.
pub(super) struct Fold {
    pub detector: Detector,
    pub intake: Intake,
    pub injector: Injector,
    pub metrics: Metrics,
    pub nodes: BTreeMap<NodeId, Presence>,
    pub last: Option<(u64, Time)>,
    /// Some acknowledged entries are missing, because the disk did not store them or because they are damaged.
    pub has_holes: bool,
    pub own_seq: u64,
    pub said: Said,
    /// Some entries were removed by thinning, and no snapshot contains their effect.
    pub misses_history: bool,
    /// Length of the part of `verdicts.ndjson` that is already known.
    pub verdict_bytes: u64,
}

impl Fold {
    /// Creates the state of an empty journal.
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
            said: Said::default(),
            misses_history: false,
            verdict_bytes: 0,
        }
    }

    fn fold(&mut self, entry: &Entry) {
        let frame = &entry.frame;
        let at = self.last.map_or(entry.at_ns, |(_, last)| last.max(entry.at_ns));
        self.has_holes |= self.last.is_some_and(|(last, _)| entry.n > last + 1);
        self.last = Some((entry.n, at));
        // All nodes must introduce themselves again, because their introductions may have been removed.
        self.misses_history |=
            matches!(&frame.event, Event::Thinned(thinned) if thinned.here && frame.agent == OWN_AGENT);
        self.has_holes |= self.misses_history;
        if frame.agent == OWN_AGENT {
            self.own_seq = self.own_seq.max(frame.seq);
        } else {
            self.intake.restore(frame);
        }
        self.said.learn(frame);
        self.injector.learn(frame);
        presence(&mut self.nodes, frame);
        self.metrics.observe(frame, 0.0);
        self.detector.read(entry);
    }
}

/// The contents of a snapshot. The detector comes first, for readers that need only the detector.
type Known = (
    Detector,
    Intake,
    Injector,
    Metrics,
    BTreeMap<NodeId, Presence>,
    Said,
    (u64, Time),
    u64,
);

impl Replay for Fold {
    fn restore(&mut self, snapshot: &Snapshot) -> Result<(), Unfit> {
        let (detector, intake, injector, metrics, nodes, said, last, own_seq) = snapshot.state::<Known>()?;
        *self = Fold {
            detector,
            intake,
            injector,
            metrics,
            nodes,
            last: Some(last),
            has_holes: false,
            own_seq,
            said,
            misses_history: false,
            verdict_bytes: snapshot.header.verdict_bytes,
        };
        Ok(())
    }

    fn take(&mut self, entry: Entry) {
        self.fold(&entry);
    }
}

impl Aggregator {
    /// Closes the journal's segment when it is long enough, and writes a snapshot. In a large job this blocks frames
    /// for most of a second. The best moment is right after a step was judged, before the next one is due.
    pub(super) fn close_segment(&mut self, between: bool, now_ns: u64) {
        if !self.journal.is_full(between, now_ns) || !self.journal.close_segment(now_ns) {
            return;
        }
        // The fields must be in the order of `Known`.
        let state = (
            &self.detector,
            &self.intake,
            &self.injector,
            &self.metrics,
            &self.nodes,
            &self.said,
            (self.last_n, self.clock.at(now_ns)),
            self.own_seq,
        );
        let header = Header::new(self.plan.job.clone(), self.last_n, self.files.length());
        match snapshot::encode(&header, &state, self.snapshot_bytes) {
            Ok(bytes) => {
                self.snapshot_bytes = bytes.len();
                self.files.commit();
                self.journal.keep(bytes);
            }
            Err(error) => warn::once("snapshot", format_args!("no snapshot: {error}")),
        }
    }

    /// Records thinning at the end of the journal too. A reader that resumed from a snapshot does not read the thinned
    /// segments, so it would miss the records there.
    pub(super) fn tell_thinned(&mut self, now_ns: u64) {
        for thinned in self.journal.thinned() {
            if !self.detector.knows(&thinned) {
                let told = Thinned {
                    here: false,
                    ..thinned
                };
                self.own(Event::Thinned(told), now_ns);
            }
        }
    }
}

/// Tracks which nodes are present.
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
        // The node's first frames were lost. A later frame also shows its incarnation.
        _ if node.agent == 0 => node.agent = frame.agent,
        _ => {}
    }
}

/// Returns true for events that must survive a power failure. Events that are sent every second need not.
pub fn lasts(event: &Event) -> bool {
    matches!(
        event,
        Event::GpuFault(_)
            | Event::Trouble(_)
            | Event::Exit(_)
            | Event::Policy(_)
            | Event::Job(_)
            | Event::End(_)
    )
}

#[cfg(test)]
#[path = "fold_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "thinned_tests.rs"]
mod thinned_tests;
