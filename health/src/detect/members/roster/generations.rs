//! Maps the restart counts of nodes to one restart count for the job. torchrun's agents count separately, and each
//! counts only its own failures. An agent that has just joined therefore starts at 0, and an agent that restarts to
//! make room for it counts nothing (`TORCHELASTIC_RESTART_COUNT`:
//! <https://docs.pytorch.org/docs/stable/elastic/run.html>). So the ranks of one group may arrive with different
//! counts. How a node's counts map to the job's is determined when its ranks attach.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Roster;
use crate::event::{Attach, Event};
use crate::frame::Frame;
use crate::id::NodeId;

/// Maximum number of nodes, and maximum number of processes of each, that are remembered.
const MOST_NODES: usize = 1 << 16;
const MOST_PROCESSES: usize = 1024;

/// The counts of all nodes, and how they map to the job's count.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Generations {
    nodes: BTreeMap<NodeId, Own>,
    /// Number of nodes whose counts differ from the job's.
    shifted: usize,
    /// True if the present group started without a higher count.
    uncounted: bool,
}

/// The counts of one node.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Own {
    /// Number to add to the node's count to get the job's count.
    add: i64,
    /// Processes that have attached there, the latest last. They are kept because a process that attaches again is not
    /// a new one.
    processes: Vec<u32>,
}

impl Generations {
    /// Returns the frame with the job's count in place of its node's.
    pub fn counted<'a>(&mut self, frame: &'a Frame, roster: &Roster) -> Cow<'a, Frame> {
        if let Event::Attach(attach) = &frame.event {
            self.attach(&frame.node, attach, roster);
        }
        let add = match self.shifted {
            0 => 0,
            _ => self.nodes.get(&frame.node).map_or(0, |own| own.add),
        };
        let mut counted = Cow::Borrowed(frame);
        if add != 0 {
            let event = &mut counted.to_mut().event;
            restarts(event, |own| *own = shift(*own, add));
        }
        if let Event::Attach(attach) = &counted.event
            && roster.begins_epoch(&counted.event)
        {
            self.uncounted = attach.restart == roster.restart;
        }
        counted
    }

    fn attach(&mut self, node: &NodeId, attach: &Attach, roster: &Roster) {
        if !self.nodes.contains_key(node) && self.nodes.len() >= MOST_NODES {
            return;
        }
        let own = self.nodes.entry(node.clone()).or_default();
        if attach.pid == 0 || own.processes.contains(&attach.pid) {
            return;
        }
        if own.processes.len() == MOST_PROCESSES {
            own.processes.remove(0);
        }
        own.processes.push(attach.pid);
        let is_missing = roster.member(attach.rank).is_none();
        let count = shift(attach.restart, own.add);
        // A new process cannot belong to an earlier group. It belongs to the present group, or starts a new one if the
        // job's size has changed.
        let is_behind = count < roster.restart;
        // The present group was started by nodes whose counts did not rise, and this node's count did. It fills a free
        // place in that group.
        let is_ahead = count > roster.restart
            && self.uncounted
            && is_missing
            && attach.world_size == roster.world_size
            && roster.placed_on(node).is_empty();
        if is_behind || is_ahead {
            let was = own.add != 0;
            own.add = i64::from(roster.restart) - i64::from(attach.restart);
            self.shifted = self.shifted + usize::from(own.add != 0) - usize::from(was);
        }
    }
}

fn shift(own: u32, add: i64) -> u32 {
    u32::try_from((i64::from(own) + add).max(0)).unwrap_or(u32::MAX)
}

/// Applies `change` to every restart count in an event.
fn restarts(event: &mut Event, change: impl Fn(&mut u32)) {
    match event {
        Event::Attach(attach) => change(&mut attach.restart),
        Event::Detach(detach) => change(&mut detach.restart),
        Event::Step(step) => change(&mut step.restart),
        Event::Start(start) => change(&mut start.restart),
        Event::Stacks(stacks) => change(&mut stacks.restart),
        Event::Entered(answer) => change(&mut answer.restart),
        Event::Layout(layout) => change(&mut layout.restart),
        Event::Group(group) => change(&mut group.restart),
        Event::Comm(comm) => change(&mut comm.restart),
        Event::Collectives(did) => change(&mut did.restart),
        Event::Beat(beat) => beat.ranks.iter_mut().for_each(|pulse| change(&mut pulse.restart)),
        _ => {}
    }
}
