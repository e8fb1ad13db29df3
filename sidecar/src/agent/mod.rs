//! The sidecar's logic without threads and sockets: it polls sources, numbers frames, sends a heartbeat once a second,
//! and at the end sends the remaining data in order. [`shell`] passes in the time and external events.

pub mod control;
pub mod join;
pub mod shell;
mod stage;
pub mod tasks;
mod ways;
pub mod witness;

use std::sync::Arc;
use std::time::Duration;

use paceline_health::Provenance;
use paceline_health::event::{self, Beat, Event, Want};

use self::control::Control;
pub use self::stage::Stage;
use crate::aggregator::server::{END_GRACE, TERMINATED_GRACE};
use crate::host::{self, Process};
use crate::remedy::hand::Hand;
use crate::remedy::order::Order;
use crate::site;
use crate::source::{Cost, Losses, Source};
use crate::uplink::Uplink;

/// Interval of the node's heartbeat.
const BEAT_EVERY_NS: u64 = 1_000_000_000;
/// One in this many heartbeats contains the cost of the sources.
const SOURCES_EVERY: u64 = 10;
/// Maximum time to drain the rings after the command has ended.
const DRAIN_NS: u64 = 1_000_000_000;
/// Maximum time to wait for the acknowledgement of the last frames.
const LEAVE_NS: u64 = 1_000_000_000;
/// A sidecar whose launcher and trainers are all gone ends after this time.
const ORPHAN_NS: u64 = 10_000_000_000;

/// The reason for the end after SIGTERM.
const TERMINATED: &str = "terminated";

/// The sidecar of one node.
pub struct Agent {
    uplink: Uplink,
    /// While this node is standalone: a second uplink that keeps its frames for the job's aggregator.
    aside: Option<Uplink>,
    /// The highest frame number up to which every frame is acknowledged or dropped in one of the two uplinks.
    released: u64,
    sources: Vec<Box<dyn Source>>,
    stage: Stage,
    alone: Option<String>,
    beat_at_ns: u64,
    beats: u64,
    /// Total polling time of each source.
    spent_ns: Vec<u64>,
    child: Option<Process>,
    orphaned_ns: Option<u64>,
    /// Exit code of the command. It is sent after its ranks' last records, because it ends these ranks.
    exit: Option<i32>,
    reason: &'static str,
    /// Carries out the aggregator's orders after faults; `None` if there are no trainers to apply them to.
    hand: Option<Hand>,
}

impl Agent {
    /// Creates a sidecar that waits for its first link.
    pub fn new(uplink: Uplink, sources: Vec<Box<dyn Source>>) -> Agent {
        Agent {
            uplink,
            aside: None,
            released: 0,
            sources,
            stage: Stage::Waiting,
            alone: None,
            beat_at_ns: 0,
            beats: 0,
            spent_ns: Vec::new(),
            child: None,
            orphaned_ns: None,
            exit: None,
            reason: "exit",
            hand: None,
        }
    }

    /// Sets the part that carries out orders.
    pub fn with_hand(self, hand: Option<Hand>) -> Agent {
        Agent { hand, ..self }
    }

    /// Returns the current stage.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Returns how long to wait for other nodes at the end.
    pub fn grace(&self) -> Duration {
        match self.reason {
            TERMINATED => TERMINATED_GRACE,
            _ => END_GRACE,
        }
    }

    /// Returns the uplink, which the shell drives.
    pub fn uplink(&mut self) -> &mut Uplink {
        &mut self.uplink
    }

    /// Handles a new link. The first link starts monitoring. If the link leads to a new journal, all sources send their
    /// introductions again.
    pub fn linked(&mut self, new_journal: bool, alone: Option<String>, now_ns: u64) {
        self.alone = alone;
        if self.stage == Stage::Waiting {
            self.stage = Stage::Watching;
            self.begin(now_ns);
        } else if new_journal && !matches!(self.stage, Stage::Leaving { .. } | Stage::Gone) {
            self.begin(now_ns);
            self.each_source(now_ns, |source, send| source.introduce(send));
        }
    }

    /// Makes this node standalone. From now on, its frames are also kept for the job's aggregator under the same
    /// numbers, as long as the spool has room.
    pub fn part(&mut self) {
        if self.aside.is_none() {
            let mut aside = self.uplink.clone();
            aside.broken();
            self.aside = Some(aside);
        }
    }

    /// Returns true if this node is standalone.
    pub fn is_parted(&self) -> bool {
        self.aside.is_some()
    }

    /// Switches to the job's aggregator, which receives the frames kept for it. Returns the last messages for the
    /// aggregator that monitored this node standalone.
    pub fn rejoin(&mut self, now_ns: u64) -> Vec<Vec<u8>> {
        let Some(aside) = self.aside.take() else {
            return Vec::new();
        };
        let mut alone = std::mem::replace(&mut self.uplink, aside);
        let reason = Arc::from("the job's aggregator was found");
        alone.push(Provenance::Live, &Event::Bye(event::Bye { reason }), now_ns);
        std::iter::from_fn(|| alone.poll_send(now_ns)).collect()
    }

    fn begin(&mut self, now_ns: u64) {
        let mut sources: Vec<Arc<str>> = self
            .sources
            .iter()
            .map(|source| Arc::from(source.name()))
            .collect();
        if let Some(why) = &self.alone {
            sources.push(Arc::from(format!("alone: {why}")));
        }
        let paceline = Arc::from(env!("CARGO_PKG_VERSION"));
        self.push(
            Event::Agent(event::Agent {
                paceline,
                sources,
                unix_ms: host::unix_ms(),
                rack: site::rack(),
                versions: site::versions(),
            }),
            now_ns,
        );
    }

    /// Handles a control event.
    pub fn control(&mut self, control: Control, now_ns: u64) {
        match control {
            Control::Child(pid) => self.child = Some(Process::of(pid)),
            Control::Exit(code) => {
                if self.is_watching() {
                    self.introduce_early(now_ns);
                    self.exit = Some(code);
                    self.drain("exit", now_ns);
                }
            }
            Control::Eof => self.orphaned_ns = Some(now_ns),
            // Continue: the trainer may write a checkpoint now, and the launcher reports when it ends.
            Control::Terminate if self.child.is_some() && self.orphaned_ns.is_none() => {}
            Control::Terminate => self.drain(TERMINATED, now_ns),
            // Ignore it here, because only the aggregator has a policy to reload.
            Control::HangUp => {}
        }
    }

    /// Passes on the aggregator's request to send every single collective of some communicators.
    pub fn wanted(&mut self, wants: &[Want]) {
        self.sources.iter_mut().for_each(|source| source.wanted(wants));
    }

    /// Carries out an order for this node.
    pub fn order(&mut self, order: &Order) {
        if let Some(hand) = self.hand.as_mut().filter(|_| order.lasts_ms > 0) {
            hand.take(order);
        }
    }

    fn is_watching(&self) -> bool {
        matches!(self.stage, Stage::Waiting | Stage::Watching)
    }

    /// Sends the introduction first if the end comes before the first link.
    fn introduce_early(&mut self, now_ns: u64) {
        if self.stage == Stage::Waiting {
            self.stage = Stage::Watching;
            self.begin(now_ns);
        }
    }

    fn drain(&mut self, reason: &'static str, now_ns: u64) {
        if self.is_watching() {
            self.introduce_early(now_ns);
            self.reason = reason;
            self.stage = Stage::Draining {
                until_ns: now_ns + DRAIN_NS,
            };
        }
    }

    /// Advances time; called ten times a second.
    pub fn tick(&mut self, now_ns: u64) {
        match self.stage {
            Stage::Waiting => self.check_launcher(now_ns),
            Stage::Watching => {
                self.poll(now_ns);
                self.check_launcher(now_ns);
            }
            Stage::Draining { until_ns } => {
                let idle = self.sources.iter_mut().all(|source| source.is_idle());
                self.poll(now_ns);
                if idle || now_ns >= until_ns {
                    if let Some(code) = self.exit.take() {
                        self.push(Event::Exit(event::Exit { code }), now_ns);
                    }
                    self.beat(now_ns);
                    self.push(
                        Event::Bye(event::Bye {
                            reason: Arc::from(self.reason),
                        }),
                        now_ns,
                    );
                    self.stage = Stage::Leaving {
                        until_ns: now_ns + LEAVE_NS,
                    };
                }
            }
            Stage::Leaving { .. } | Stage::Gone => {}
        }
        self.settle(now_ns);
    }

    /// Lets sources release acknowledged data. Once the last frame is acknowledged, the sidecar ends.
    pub fn settle(&mut self, now_ns: u64) {
        let settled = self.uplink.settled();
        // Never decrease the number. A frame that one aggregator acknowledged may still be unacknowledged by the other,
        // but its data was already released.
        self.released = self.released.max(settled);
        let released = self.released;
        self.sources
            .iter_mut()
            .for_each(|source| source.settled(released));
        if let Stage::Leaving { until_ns } = self.stage
            && (settled == self.uplink.last_seq() || now_ns >= until_ns)
        {
            // Poll once more, so that sources remove the files of acknowledged data.
            self.each_source(now_ns, |source, send| source.poll(now_ns, send));
            self.stage = Stage::Gone;
        }
    }

    fn poll(&mut self, now_ns: u64) {
        let mut spent = std::mem::take(&mut self.spent_ns);
        spent.resize(self.sources.len(), 0);
        let mut each = spent.iter_mut();
        self.each_source(now_ns, |source, send| {
            let began_ns = host::monotonic_ns();
            source.poll(now_ns, send);
            if let Some(spent) = each.next() {
                *spent += host::monotonic_ns().saturating_sub(began_ns);
            }
        });
        self.spent_ns = spent;
        let is_urgent = self
            .sources
            .iter_mut()
            .fold(false, |any, source| source.is_urgent() | any);
        if now_ns >= self.beat_at_ns {
            // Align the heartbeat with the readings that are taken once a second.
            self.beat_at_ns = now_ns - now_ns % BEAT_EVERY_NS + BEAT_EVERY_NS;
            self.beat(now_ns);
        } else if is_urgent {
            self.beat(now_ns);
        }
    }

    fn beat(&mut self, now_ns: u64) {
        let mut ranks = Vec::new();
        let mut losses = Losses::default();
        let mut cost = Cost::default();
        for source in &mut self.sources {
            source.pulses(now_ns, &mut ranks);
            let own = source.losses();
            losses.dropped += own.dropped;
            losses.torn += own.torn;
            let own = source.cost();
            cost.plugin_ns += own.plugin_ns;
            cost.plugin_calls += own.plugin_calls;
        }
        for source in &mut self.sources {
            source.notice(&ranks, now_ns);
        }
        let source_ns = if self.beats.is_multiple_of(SOURCES_EVERY) {
            let each = self.sources.iter().zip(&self.spent_ns);
            each.map(|(source, spent)| spent + source.busy_ns()).collect()
        } else {
            Vec::new()
        };
        self.beats += 1;
        let beat = Beat {
            ranks,
            ring_dropped: losses.dropped,
            ring_torn: losses.torn,
            spool_dropped: self.uplink.dropped(),
            cpu_ns: host::cpu_ns(),
            rss_bytes: host::rss_bytes(),
            plugin_ns: cost.plugin_ns,
            plugin_calls: cost.plugin_calls,
            source_ns,
        };
        self.push(Event::Beat(beat), now_ns);
    }

    /// Ends monitoring after the launcher vanished, but only once its command (if unknown: all trainers) is gone.
    fn check_launcher(&mut self, now_ns: u64) {
        let Some(since_ns) = self.orphaned_ns else { return };
        let over = match self.child {
            Some(child) => !child.is_alive(),
            None => {
                let idle = self.sources.iter_mut().all(|source| source.is_idle());
                idle && now_ns.saturating_sub(since_ns) >= ORPHAN_NS
            }
        };
        if over {
            self.drain("launcher gone", now_ns);
        }
    }

    fn push(&mut self, event: Event, now_ns: u64) {
        push(
            &mut self.uplink,
            &mut self.aside,
            Provenance::Live,
            &event,
            now_ns,
        );
    }

    fn each_source(
        &mut self,
        now_ns: u64,
        mut act: impl FnMut(&mut dyn Source, &mut crate::source::Send<'_>),
    ) {
        let Agent {
            uplink,
            aside,
            sources,
            ..
        } = self;
        for source in sources {
            act(source.as_mut(), &mut |provenance, event| {
                push(uplink, aside, provenance, &event, now_ns)
            });
        }
    }
}

/// Pushes the frame to both uplinks, so that it has the same number in both.
fn push(
    uplink: &mut Uplink,
    aside: &mut Option<Uplink>,
    provenance: Provenance,
    event: &Event,
    now_ns: u64,
) -> u64 {
    if let Some(aside) = aside {
        aside.push(provenance, event, now_ns);
    }
    uplink.push(provenance, event, now_ns)
}

#[cfg(test)]
#[path = "agent_tests.rs"]
mod tests;
