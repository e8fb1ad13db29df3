//! The sidecar's side of one link, without I/O. Bytes go in and come out, and the time is an argument.
//!
//! Call [`Uplink::connected`] and [`Uplink::broken`] when a link is established or lost, and [`Uplink::received`] for
//! its messages. After each of these calls, and after [`Uplink::push`], send the messages of [`Uplink::poll_send`]
//! until it returns none. [`Uplink::is_stuck`] detects a link that is open but does not work.

use std::time::Duration;

use paceline_health::Provenance;
use paceline_health::event::{Event, Want};
use paceline_health::frame::SCHEMA_VERSION;

use crate::remedy::order::Order;

use super::link::patience;
use super::pack;
use super::spool::{Spool, last_seq};
use super::wire::{Ack, Batch, Down, Hello, Up, Welcome, decode_down, encode};

/// How long a link may be without acknowledgements before it is considered broken. The time doubles, up to three times,
/// with each failed link, because thousands of new handshakes would only slow down an aggregator that is short of CPU.
pub const ACK_DEADLINE: Duration = Duration::from_secs(2);
/// Maximum number of frames in flight, which is the limit of a link's buffer.
const WINDOW: u64 = 8 * 1024;
/// How long an event for findings may be delayed to be sent with others. It helps because the ranks of a node end a
/// step together.
const SOON_NS: u64 = 50_000_000;
/// Minimum interval between messages if steps are short. Each message costs both ends a wake-up or two.
const APART_NS: u64 = 150_000_000;
/// How long an event that is sent at most once a second may wait for a step.
const LATER_NS: u64 = 900_000_000;

/// What a message from the aggregator means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The link works. `new_journal` means that this aggregator does not have everything that an earlier one
    /// acknowledged.
    Welcome {
        /// Whether this node and its ranks must be introduced again.
        new_journal: bool,
    },
    /// The link is refused, with the reason.
    Refused(String),
    /// The aggregator has acknowledged more frames as safe.
    Acked,
    /// The aggregator requests each collective of these communicators, and of no others.
    Wanted(Vec<Want>),
    /// An order for this node.
    Order(Order),
    /// The message is not for us, is unreadable, or is not relevant for the caller.
    Noise,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Down,
    Greeting,
    Up,
}

/// The sending end of a link.
#[derive(Clone, Debug)]
pub struct Uplink {
    me: Hello,
    spool: Spool,
    link: Link,
    hello_due: bool,
    /// The last frame sent on this link.
    sent: u64,
    acked: u64,
    /// When the link last made progress. Relevant only while frames are in flight.
    progress_ns: u64,
    /// The number of links established since an acknowledgement last arrived in time.
    in_vain: u32,
    /// The time by which the latest events must be sent.
    due_ns: u64,
    /// When the last batch was sent.
    left_ns: u64,
    journal: Option<u64>,
    /// True if the aggregator on this link reads packed messages.
    packs: bool,
}

impl Uplink {
    /// Creates a sender without a link.
    pub fn new(me: Hello, spool_bytes: usize) -> Uplink {
        Uplink {
            me,
            spool: Spool::new(spool_bytes),
            link: Link::Down,
            hello_due: false,
            sent: 0,
            acked: 0,
            progress_ns: 0,
            in_vain: 0,
            due_ns: u64::MAX,
            left_ns: 0,
            journal: None,
            packs: false,
        }
    }

    /// Numbers an event. It is sent as soon as there is a link, or shortly after together with similar events.
    pub fn push(&mut self, provenance: Provenance, event: &Event, now_ns: u64) -> u64 {
        // No frames were in flight, so the deadline for progress starts now. While a greeting is unanswered, its
        // deadline must not be extended.
        if self.link == Link::Up && self.sent == self.acked {
            self.progress_ns = now_ns;
        }
        let due_ns = match urgency(event) {
            Urgency::Now => now_ns,
            Urgency::Soon => now_ns
                .saturating_add(SOON_NS)
                .max(self.left_ns.saturating_add(APART_NS)),
            Urgency::Later => now_ns.saturating_add(LATER_NS),
        };
        self.due_ns = self.due_ns.min(due_ns);
        self.spool.push(provenance, event)
    }

    /// Handles a new link. The handshake comes next.
    pub fn connected(&mut self, now_ns: u64) {
        self.in_vain = self.in_vain.saturating_add(1);
        self.link = Link::Greeting;
        self.hello_due = true;
        self.packs = false;
        self.progress_ns = now_ns;
    }

    /// Handles a new link whose handshake was done by the caller.
    pub fn welcomed(&mut self, welcome: &Welcome, now_ns: u64) -> Heard {
        if self.link != Link::Greeting {
            self.in_vain = self.in_vain.saturating_add(1);
        }
        self.link = Link::Up;
        self.hello_due = false;
        self.packs = false;
        self.progress_ns = now_ns;
        // The aggregator no longer has frames that it acknowledged earlier, perhaps including the introduction of this
        // node.
        let forgot = welcome.upto < self.acked;
        self.acked = self.acked.max(welcome.upto.min(self.spool.last_seq()));
        self.spool.ack(self.acked);
        self.sent = self.acked;
        self.due_ns = now_ns;
        let new_journal = forgot || self.journal.is_some_and(|journal| journal != welcome.journal);
        self.journal = Some(welcome.journal);
        Heard::Welcome { new_journal }
    }

    /// Handles the loss of the link. Frames in flight will be sent again.
    pub fn broken(&mut self) {
        self.link = Link::Down;
        self.hello_due = false;
        self.sent = self.acked;
    }

    /// Handles a message.
    pub fn received(&mut self, bytes: &[u8], now_ns: u64) -> Heard {
        match decode_down(bytes) {
            Ok(Down::Welcome(welcome)) if self.link == Link::Greeting && welcome.is_for(&self.me) => {
                self.welcomed(&welcome, now_ns)
            }
            Ok(Down::Refused(refused)) => {
                self.broken();
                Heard::Refused(refused.why)
            }
            Ok(Down::Ack(ack)) if self.is_mine(&ack) => {
                // A repeated acknowledgement is no progress. It means that the aggregator lacks an earlier batch.
                if ack.upto > self.acked {
                    if now_ns.saturating_sub(self.progress_ns) < ACK_DEADLINE.as_nanos() as u64 {
                        self.in_vain = 0;
                    }
                    self.progress_ns = now_ns;
                }
                self.acked = ack.upto;
                self.sent = self.sent.max(self.acked);
                self.spool.ack(self.acked);
                Heard::Acked
            }
            Ok(Down::Wanted(wanted)) if wanted.job == self.me.job && wanted.agent == self.me.agent => {
                Heard::Wanted(wanted.kept())
            }
            Ok(Down::Order(order)) if order.job == self.me.job && order.agent == self.me.agent => {
                Heard::Order(order)
            }
            Ok(Down::Reads(reads)) if reads.job == self.me.job && reads.agent == self.me.agent => {
                self.packs = self.link == Link::Up && reads.dictionary >= pack::DICTIONARY;
                Heard::Noise
            }
            _ => Heard::Noise,
        }
    }

    fn is_mine(&self, ack: &Ack) -> bool {
        ack.job == self.me.job
            && ack.agent == self.me.agent
            && ack.upto <= self.spool.last_seq()
            && ack.upto >= self.acked
    }

    /// Returns the next message for the link, if one is due.
    pub fn poll_send(&mut self, now_ns: u64) -> Option<Vec<u8>> {
        if std::mem::take(&mut self.hello_due) {
            return Some(encode(&Up::Hello(self.me.clone())));
        }
        let is_full = self.sent.saturating_sub(self.acked) >= WINDOW;
        if self.link != Link::Up || is_full || now_ns < self.due_ns {
            return None;
        }
        let Some((after, first_seq, events)) = self.spool.run_after(self.sent) else {
            self.due_ns = u64::MAX;
            return None;
        };
        let Hello { job, node, agent, .. } = self.me.clone();
        let batch = Batch {
            v: SCHEMA_VERSION,
            job,
            node,
            agent,
            after,
            first_seq,
            events,
        };
        self.sent = last_seq(&batch);
        self.left_ns = now_ns;
        let message = encode(&Up::Batch(batch));
        Some(if self.packs { pack::pack(message) } else { message })
    }

    /// Returns when to call [`Uplink::poll_send`] again if no other call is made before.
    pub fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Returns true if the link has been silent for too long. The caller should drop it and open another.
    pub fn is_stuck(&self, now_ns: u64) -> bool {
        let waits = self.link == Link::Greeting || (self.link == Link::Up && self.sent > self.acked);
        let deadline = patience(ACK_DEADLINE, self.in_vain.saturating_sub(1));
        waits && now_ns.saturating_sub(self.progress_ns) >= deadline.as_nanos() as u64
    }

    /// Returns true if the handshake is done.
    pub fn is_up(&self) -> bool {
        self.link == Link::Up
    }

    /// Returns the last frame that was acknowledged.
    pub fn acked(&self) -> u64 {
        self.acked
    }

    /// Returns the last frame up to which every frame is safe or dropped.
    pub fn settled(&self) -> u64 {
        self.spool.settled()
    }

    /// Returns the sequence number of the last frame.
    pub fn last_seq(&self) -> u64 {
        self.spool.last_seq()
    }

    /// Returns the size of the spool, bytes.
    pub fn spooled_bytes(&self) -> usize {
        self.spool.bytes()
    }

    /// Returns the number of frames dropped because the spool was full.
    pub fn dropped(&self) -> u64 {
        self.spool.dropped()
    }
}

/// How long an event may wait to be sent with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Urgency {
    /// Faults, starts and ends.
    Now,
    /// Events for findings.
    Soon,
    /// Events that are repeated every second.
    Later,
}

fn urgency(event: &Event) -> Urgency {
    match event {
        Event::Step(_) | Event::Comm(_) | Event::Collectives(_) => Urgency::Soon,
        other if other.is_telemetry() => Urgency::Later,
        _ => Urgency::Now,
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
