//! The results of a load in numbers. All times are from this machine's monotonic clock.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use paceline_health::event::Event;
use serde::{Deserialize, Serialize};

use crate::guard::conduit::Traffic;
use crate::host::{self, monotonic_ns};

/// Maximum duration that is recorded, microseconds. Durations have a precision of three digits.
const LONGEST_US: u64 = 60_000_000;

/// Counts while a load runs.
pub struct Tally {
    nodes: usize,
    up: Cell<usize>,
    started_ns: u64,
    all_joined_ns: Cell<Option<u64>>,
    began: Cell<(u64, u64)>,
    joins: RefCell<Histogram<u64>>,
    said_to_acked: RefCell<Histogram<u64>>,
    sent_to_acked: RefCell<Histogram<u64>>,
    late: RefCell<Histogram<u64>>,
    failed: RefCell<BTreeMap<String, u64>>,
    failure: RefCell<String>,
    frames: Cell<u64>,
    rank_steps: Cell<u64>,
    /// The traffic so far, and the part of it from before the world began. That part, from joining, is reported
    /// separately.
    bytes: Cell<(u64, u64)>,
    before: Cell<(u64, u64)>,
    steps: RefCell<Vec<(u64, u64)>>,
    outage_ns: Cell<Option<u64>>,
    outages: RefCell<Vec<(u64, u64)>>,
}

/// The median, the 99th percentile and the maximum of durations, milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spans {
    /// Median.
    pub p50_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Maximum.
    pub max_ms: f64,
}

/// The results of a load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Version of this report.
    pub schema_version: u32,
    /// The number of nodes of this process, with one connection each.
    pub nodes: u64,
    /// The time from the first attempt until the last node was accepted, seconds. `None` if not all have joined.
    pub connect_s: Option<f64>,
    /// Duration of each node's successful attempt.
    pub connect: Spans,
    /// Failed attempts to join, by error.
    pub failed: BTreeMap<String, u64>,
    /// The last error of a failed attempt to join.
    pub last_failure: String,
    /// The time from the first event to the last answer, seconds.
    pub took_s: f64,
    /// Frames created.
    pub frames: u64,
    /// The number of these frames that are rank steps.
    pub rank_steps: u64,
    /// Frames dropped by the nodes' spools.
    pub dropped: u64,
    /// Bytes to the aggregator since the first event, as carried by TCP.
    pub bytes_up: u64,
    /// Bytes from the aggregator since the first event, as carried by TCP.
    pub bytes_down: u64,
    /// The time from an event to its acknowledgement.
    pub said_to_acked: Spans,
    /// The time from the socket write to the acknowledgement.
    pub sent_to_acked: Spans,
    /// How late this process itself was in sending events.
    pub late: Spans,
    /// CPU time of this process since the first event, seconds. It includes the simulator and all nodes.
    pub cpu_s: f64,
    /// The resident memory of this process at the end, bytes.
    pub rss_bytes: u64,
    /// For each step, its number and when its last rank's event was created, nanoseconds.
    pub steps: Vec<(u64, u64)>,
    /// For each outage, when the first node lost its link, and when all were linked and up to date again, nanoseconds.
    pub outages: Vec<(u64, u64)>,
}

impl Tally {
    pub(super) fn new(nodes: usize) -> Tally {
        Tally {
            nodes,
            up: Cell::new(0),
            started_ns: monotonic_ns(),
            all_joined_ns: Cell::new(None),
            began: Cell::new((monotonic_ns(), host::cpu_ns())),
            joins: spans(),
            said_to_acked: spans(),
            sent_to_acked: spans(),
            late: spans(),
            failed: RefCell::default(),
            failure: RefCell::default(),
            frames: Cell::new(0),
            rank_steps: Cell::new(0),
            bytes: Cell::default(),
            before: Cell::default(),
            steps: RefCell::default(),
            outage_ns: Cell::new(None),
            outages: RefCell::default(),
        }
    }

    /// Records that the world begins. `before` is the traffic so far.
    pub(super) fn begin(&self, before: (u64, u64)) {
        self.before.set(before);
        self.began.set((monotonic_ns(), host::cpu_ns()));
    }

    pub(super) fn joined(&self) -> usize {
        self.up.get()
    }

    pub(super) fn all_joined(&self) -> bool {
        self.all_joined_ns.get().is_some()
    }

    pub(super) fn rank_steps(&self) -> u64 {
        self.rank_steps.get()
    }

    pub(super) fn last_failure(&self) -> String {
        self.failure.borrow().clone()
    }

    /// Records that a node has joined, after this time.
    pub(super) fn join(&self, took_ns: u64) {
        self.up.set(self.up.get() + 1);
        record(&self.joins, took_ns);
        if self.up.get() == self.nodes && self.all_joined_ns.get().is_none() {
            self.all_joined_ns.set(Some(monotonic_ns()));
        }
    }

    /// Records that a node has lost its link.
    pub(super) fn leave(&self, traffic: &Traffic, now_ns: u64) {
        self.count(traffic);
        self.up.set(self.up.get().saturating_sub(1));
        if self.all_joined() && self.outage_ns.get().is_none() {
            self.outage_ns.set(Some(now_ns));
        }
    }

    pub(super) fn missed(&self, why: String) {
        *self.failed.borrow_mut().entry(why.clone()).or_default() += 1;
        *self.failure.borrow_mut() = why;
    }

    /// Records the result of a check of all nodes.
    pub(super) fn settled(&self, all_near: bool, now_ns: u64) {
        if all_near && let Some(from_ns) = self.outage_ns.take() {
            self.outages.borrow_mut().push((from_ns, now_ns));
        }
    }

    pub(super) fn said(&self, event: &Event, now_ns: u64) {
        self.frames.set(self.frames.get() + 1);
        let Event::Step(step) = event else { return };
        self.rank_steps.set(self.rank_steps.get() + 1);
        let mut steps = self.steps.borrow_mut();
        match steps
            .iter_mut()
            .rev()
            .take(4)
            .find(|(number, _)| *number == step.step)
        {
            Some((_, last_ns)) => *last_ns = now_ns,
            None => steps.push((step.step, now_ns)),
        }
    }

    pub(super) fn acked(&self, said_ns: u64, sent_ns: u64, now_ns: u64) {
        record(&self.said_to_acked, now_ns.saturating_sub(said_ns));
        record(&self.sent_to_acked, now_ns.saturating_sub(sent_ns));
    }

    pub(super) fn late(&self, by_ns: u64) {
        record(&self.late, by_ns);
    }

    fn count(&self, traffic: &Traffic) {
        let ((up, down), (written, read)) = (self.bytes.get(), traffic.both());
        self.bytes.set((up + written, down + read));
    }

    pub(super) fn bytes(&self) -> (u64, u64) {
        self.bytes.get()
    }

    pub(super) fn report(&self, dropped: u64, (up, down): (u64, u64)) -> LoadReport {
        let (began_ns, began_cpu_ns) = self.began.get();
        let before = self.before.get();
        LoadReport {
            schema_version: 1,
            nodes: self.nodes as u64,
            connect_s: self.all_joined_ns.get().map(|ns| seconds(ns - self.started_ns)),
            connect: told(&self.joins),
            failed: self.failed.borrow().clone(),
            last_failure: self.last_failure(),
            took_s: seconds(monotonic_ns() - began_ns),
            frames: self.frames.get(),
            rank_steps: self.rank_steps.get(),
            dropped,
            bytes_up: up.saturating_sub(before.0),
            bytes_down: down.saturating_sub(before.1),
            said_to_acked: told(&self.said_to_acked),
            sent_to_acked: told(&self.sent_to_acked),
            late: told(&self.late),
            cpu_s: seconds(host::cpu_ns().saturating_sub(began_cpu_ns)),
            rss_bytes: host::rss_bytes(),
            steps: self.steps.borrow().clone(),
            outages: self.outages.borrow().clone(),
        }
    }
}

impl LoadReport {
    /// Merges the report of another process for the same job. Counts are added. For durations, the worse value is kept,
    /// and for a step, the later time.
    pub fn with(mut self, other: LoadReport) -> LoadReport {
        let connect_s = self.connect_s.zip(other.connect_s);
        self.connect_s = connect_s.map(|(one, another)| one.max(another));
        for (mine, theirs) in [
            (&mut self.nodes, other.nodes),
            (&mut self.frames, other.frames),
            (&mut self.rank_steps, other.rank_steps),
            (&mut self.dropped, other.dropped),
            (&mut self.bytes_up, other.bytes_up),
            (&mut self.bytes_down, other.bytes_down),
            (&mut self.rss_bytes, other.rss_bytes),
        ] {
            *mine += theirs;
        }
        for (mine, theirs) in [
            (&mut self.connect, other.connect),
            (&mut self.said_to_acked, other.said_to_acked),
            (&mut self.sent_to_acked, other.sent_to_acked),
            (&mut self.late, other.late),
        ] {
            *mine = mine.or_worse(theirs);
        }
        for (why, count) in other.failed {
            *self.failed.entry(why).or_default() += count;
        }
        if !other.last_failure.is_empty() {
            self.last_failure = other.last_failure;
        }
        self.took_s = self.took_s.max(other.took_s);
        self.cpu_s += other.cpu_s;
        let mut steps: BTreeMap<u64, u64> = self.steps.into_iter().collect();
        for (step, last_ns) in other.steps {
            let last = steps.entry(step).or_default();
            *last = last_ns.max(*last);
        }
        self.steps = steps.into_iter().collect();
        self.outages.extend(other.outages);
        self
    }
}

impl Spans {
    fn or_worse(self, other: Spans) -> Spans {
        Spans {
            p50_ms: self.p50_ms.max(other.p50_ms),
            p99_ms: self.p99_ms.max(other.p99_ms),
            max_ms: self.max_ms.max(other.max_ms),
        }
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn spans() -> RefCell<Histogram<u64>> {
    // The library accepts these bounds. Without bounds, the histogram could grow.
    RefCell::new(
        Histogram::new_with_bounds(1, LONGEST_US, 3)
            .unwrap_or_else(|_| unreachable!("1 to {LONGEST_US} to three digits is a histogram")),
    )
}

fn record(spans: &RefCell<Histogram<u64>>, ns: u64) {
    spans.borrow_mut().saturating_record(ns / 1000);
}

fn told(spans: &RefCell<Histogram<u64>>) -> Spans {
    let spans = spans.borrow();
    let ms = |us: u64| us as f64 / 1e3;
    Spans {
        p50_ms: ms(spans.value_at_quantile(0.5)),
        p99_ms: ms(spans.value_at_quantile(0.99)),
        max_ms: ms(spans.max()),
    }
}
