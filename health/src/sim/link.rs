//! The path of events from a node to the journal. It includes the sidecar's polling, its sequence numbers, and the
//! effects of a bad link.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::chance::Chance;
use super::fault::Fault;
use super::spec::WorldSpec;
use crate::event::Event;
use crate::frame::{Frame, Provenance, SCHEMA_VERSION};
use crate::id::NodeId;
use crate::time::Time;

/// Maximum delay of a reordered or repeated frame.
const DISORDER_S: f64 = 1.0;

/// Pending events, in order of time.
#[derive(Debug)]
pub(super) struct Link {
    /// The times of events, with their index in `cargo`. Events are not stored here, because the heap moves its items
    /// and these should be small.
    queue: BinaryHeap<Reverse<Ticket>>,
    pushed: u64,
    cargo: Vec<Option<Cargo>>,
    free: Vec<u32>,
    nodes: Vec<Sender>,
    outages: Vec<Outage>,
    loss: f64,
    reorder: f64,
    repeat: f64,
}

#[derive(Debug)]
struct Sender {
    name: NodeId,
    agent: u64,
    seq: u64,
    chance: Chance,
}

/// An interval in which a node's sidecar or its link is down.
#[derive(Clone, Copy, Debug)]
struct Outage {
    node: u32,
    from: Time,
    until: Time,
    gone: bool,
    kept: bool,
    /// True if the start of the new sidecar has already been scheduled.
    told: bool,
}

/// The place of an event in the queue. Ordered by time, then by insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ticket {
    at: Time,
    order: u64,
    node: u32,
    slot: u32,
}

#[derive(Debug)]
enum Cargo {
    /// An event that was observed on the node but not yet read by its sidecar.
    Seen(Event),
    /// A frame in transit.
    Sent(Frame),
    /// An event of the aggregator itself.
    Own(Event),
    /// A new sidecar starts.
    Restart,
}

impl Link {
    pub fn new(spec: &WorldSpec, names: &[NodeId]) -> Link {
        let sender = |(index, name): (usize, &NodeId)| {
            let mut chance = Chance::of(spec.seed, &[0x006c_696e, index as u64]);
            // The id is pseudorandom and never zero, because zero is reserved for the aggregator's own entries.
            Sender {
                name: name.clone(),
                agent: chance.bits() >> 16 | 1,
                seq: 0,
                chance,
            }
        };
        let nodes = names.iter().enumerate().map(sender).collect();
        let mut link = Link {
            queue: BinaryHeap::new(),
            pushed: 0,
            cargo: Vec::new(),
            free: Vec::new(),
            nodes,
            outages: Vec::new(),
            loss: 0.0,
            reorder: 0.0,
            repeat: 0.0,
        };
        for fault in &spec.faults {
            link.take(fault);
        }
        link
    }

    fn take(&mut self, fault: &Fault) {
        let time = Time::from_secs_f64;
        match *fault {
            Fault::Loss { share } => self.loss = share,
            Fault::Reorder { share } => self.reorder = share,
            Fault::Repeat { share } => self.repeat = share,
            Fault::Gap {
                node,
                from_s,
                for_s,
                kept,
            } => {
                let until = for_s.map_or(Time(u64::MAX), |for_s| time(from_s + for_s));
                self.outages.push(Outage {
                    node,
                    from: time(from_s),
                    until,
                    gone: true,
                    kept,
                    told: false,
                });
            }
            Fault::Hold { node, from_s, for_s } => {
                let until = time(from_s + for_s);
                self.outages.push(Outage {
                    node,
                    from: time(from_s),
                    until,
                    gone: false,
                    kept: true,
                    told: false,
                });
            }
            _ => {}
        }
    }

    /// Schedules an event that a node's sidecar reads at `at`.
    pub fn seen(&mut self, at: Time, node: u32, event: Event) {
        self.push(at, node, Cargo::Seen(event));
    }

    /// Schedules an event that the aggregator writes at `at`, under the name of the first node.
    pub fn own(&mut self, at: Time, event: Event) {
        self.push(at, 0, Cargo::Own(event));
    }

    /// Schedules the start of a new sidecar on the node at `at`.
    pub fn restart(&mut self, at: Time, node: u32) {
        self.push(at, node, Cargo::Restart);
    }

    /// Returns the time and node of sidecars that start again before `until` and that this function has not returned
    /// yet.
    pub fn returns(&mut self, until: Time) -> Vec<(Time, u32)> {
        let mut back = Vec::new();
        for outage in &mut self.outages {
            if outage.gone && !outage.told && outage.until < until {
                outage.told = true;
                back.push((outage.until, outage.node));
            }
        }
        back
    }

    /// Returns true if the node is cut off at `at`.
    pub fn is_cut(&self, at: Time, node: u32) -> bool {
        self.outages
            .iter()
            .any(|outage| outage.node == node && (outage.from..outage.until).contains(&at))
    }

    /// Returns the number of pending events.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Returns the time of the next event.
    pub fn next_at(&self) -> Option<Time> {
        self.queue.peek().map(|Reverse(ticket)| ticket.at)
    }

    /// Processes the next event. Returns a frame if one reaches the journal.
    pub fn turn(&mut self) -> Option<(Time, Frame)> {
        let Reverse(Ticket { at, node, slot, .. }) = self.queue.pop()?;
        self.free.push(slot);
        match self.cargo[slot as usize].take()? {
            Cargo::Sent(frame) => Some((at, frame)),
            Cargo::Own(event) => Some((at, self.frame(node, 0, 0, event))),
            Cargo::Seen(event) => self.read(at, node, event),
            Cargo::Restart => {
                let sender = &mut self.nodes[node as usize];
                (sender.agent, sender.seq) = (sender.chance.bits() >> 16 | 1, 0);
                None
            }
        }
    }

    fn read(&mut self, at: Time, node: u32, event: Event) -> Option<(Time, Frame)> {
        let mut outages = self.outages.iter().filter(|outage| outage.node == node);
        let outage = outages
            .find(|outage| (outage.from..outage.until).contains(&at))
            .copied();
        if let Some(outage) = outage.filter(|outage| outage.gone) {
            // Observations during the outage are lost, except for steps that stay in their ring.
            if outage.kept && matches!(event, Event::Step(_)) && outage.until.0 < u64::MAX {
                self.push(
                    outage.until + Duration::from_millis(200),
                    node,
                    Cargo::Seen(event),
                );
            }
            return None;
        }
        let sender = &mut self.nodes[node as usize];
        sender.seq += 1;
        let (agent, seq) = (sender.agent, sender.seq);
        // These numbers are drawn even if they are not used, so that one kind of fault does not shift the random
        // numbers of another.
        let [lost, late, again, by] = std::array::from_fn(|_| sender.chance.unit());
        let light = matches!(event, Event::Step(_) | Event::Gpu(_) | Event::Beat(_));
        if light && lost < self.loss {
            return None;
        }
        let frame = self.frame(node, agent, seq, event);
        let later = |from: Time| from + Duration::from_secs_f64(DISORDER_S * by);
        if again < self.repeat {
            self.push(later(at), node, Cargo::Sent(frame.clone()));
        }
        let arrives = match outage {
            Some(outage) => outage.until,
            None if light && late < self.reorder => later(at),
            None => return Some((at, frame)),
        };
        self.push(arrives, node, Cargo::Sent(frame));
        None
    }

    fn frame(&self, node: u32, agent: u64, seq: u64, event: Event) -> Frame {
        let node = self.nodes[node as usize].name.clone();
        Frame {
            v: SCHEMA_VERSION,
            node,
            agent,
            seq,
            provenance: Provenance::Sim,
            event,
        }
    }

    fn push(&mut self, at: Time, node: u32, cargo: Cargo) {
        self.pushed += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.cargo.push(None);
            self.cargo.len() as u32 - 1
        });
        self.cargo[slot as usize] = Some(cargo);
        self.queue.push(Reverse(Ticket {
            at,
            order: self.pushed,
            node,
            slot,
        }));
    }
}
