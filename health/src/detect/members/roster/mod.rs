//! Members: ranks, nodes and their sidecars as they declared themselves, and what was received from them.

mod generations;
mod node;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::generations::Generations;
use super::cursor_map::CursorMap;
use super::endings::Endings;
use super::gaps::Gaps;
use crate::event::{Attach, Event, Layout, Signal, Step};
use crate::frame::Frame;
use crate::id::{GpuId, NodeId, Rank};
use crate::time::Time;
use crate::verdict::Subject;
pub use node::Node;

/// Maximum plausible rank number. It limits memory before any is allocated.
pub const MAX_RANKS: u32 = 1 << 20;
/// Maximum number of silent sources that are remembered.
const MAX_MUTE: usize = 4096;

/// One rank in the current epoch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Member {
    pub node: NodeId,
    pub gpu: Option<GpuId>,
    pub role: Arc<str>,
    pub layout: Option<Layout>,
    pid: u32,
    /// True if only the NCCL plugin reports this rank. Its steps are then found in its collectives.
    #[serde(default)]
    pub is_by_collectives: bool,
    /// First and last step received, and the number of steps received.
    pub first_step: Option<u64>,
    pub last_step: u64,
    pub steps: u64,
    /// True if the rank has detached or its node's command has ended.
    pub ended: bool,
}

impl Member {
    /// Returns true if this rank may be the process with this ID. A zero on either side means that the ID is not known.
    pub fn may_be(&self, pid: u32) -> bool {
        self.pid == 0 || pid == 0 || self.pid == pid
    }
}

/// All ranks and nodes.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Roster {
    members: Vec<Option<Box<Member>>>,
    nodes: CursorMap<NodeId, Node>,
    pub world_size: u32,
    /// The first rank with an impossible declaration, and the world size that it declared.
    pub misfit: Option<(Rank, u32)>,
    pub restart: u32,
    pub signals: Vec<Signal>,
    pub gaps: Gaps,
    pub sources: Vec<Arc<str>>,
    /// Sources that provide no data, and why.
    pub mute: BTreeMap<(NodeId, Arc<str>), Arc<str>>,
    /// Number of changes so far to the ranks' places in the layout.
    pub shape: u64,
    pub endings: Endings,
    generations: Generations,
}

impl Roster {
    /// Returns the rank if it has attached in this epoch.
    pub fn member(&self, rank: Rank) -> Option<&Member> {
        self.members.get(rank.0 as usize)?.as_deref()
    }

    /// Returns the current step of a rank according to the steps received, or `None` if none was.
    pub fn step_of(&self, rank: Rank) -> Option<u64> {
        let member = self.member(rank)?;
        member.first_step.map(|_| member.last_step.saturating_add(1))
    }

    /// Returns the ranks of this epoch in order.
    pub fn members(&self) -> impl Iterator<Item = (Rank, &Member)> {
        self.members
            .iter()
            .zip(0..)
            .filter_map(|(member, rank)| Some((Rank(rank), member.as_deref()?)))
    }

    /// Returns when a node last reported.
    pub fn last_heard(&self, node: &NodeId) -> Option<Time> {
        Some(self.nodes.get(node)?.last_heard)
    }

    /// Returns the rack of a node, if the node declared one.
    pub fn rack_of(&self, node: &NodeId) -> Option<Arc<str>> {
        let rack = &self.nodes.get(node)?.rack;
        (!rack.is_empty()).then(|| rack.clone())
    }

    /// Returns the ranks on a node that have not ended.
    pub fn ranks_of(&self, node: &NodeId) -> Vec<Rank> {
        let mut ranks = self.placed_on(node);
        ranks.retain(|rank| self.member(*rank).is_some_and(|member| !member.ended));
        ranks
    }

    /// Returns the ranks that ran on a node, including those that have ended.
    pub fn placed_on(&self, node: &NodeId) -> Vec<Rank> {
        self.members()
            .filter(|(_, member)| member.node == *node)
            .map(|(rank, _)| rank)
            .collect()
    }

    /// Returns the nodes in order.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeId, &Node)> {
        self.nodes.iter()
    }

    /// Returns the rank as the subject of a verdict.
    pub fn subject(&self, rank: Rank) -> Option<Subject> {
        let member = self.member(rank)?;
        Some(Subject::Rank {
            rank,
            node: member.node.clone(),
            gpu_uuid: member.gpu.clone(),
        })
    }

    /// Returns the number of missing frames.
    pub fn frames_lost(&self) -> u64 {
        self.nodes
            .iter()
            .map(|(_, node)| node.lost())
            .fold(0, u64::saturating_add)
    }

    /// Returns the number of records that full rings dropped, and of torn records.
    pub fn ring_losses(&self) -> (u64, u64) {
        self.nodes.iter().fold((0, 0), |(dropped, torn), (_, node)| {
            let (more_dropped, more_torn) = node.ring_losses();
            (
                dropped.saturating_add(more_dropped),
                torn.saturating_add(more_torn),
            )
        })
    }

    /// Returns true if the frame was received before and must be ignored.
    pub fn has_seen(&mut self, frame: &Frame) -> bool {
        let node = self.nodes.get_mut(&frame.node);
        node.is_some_and(|node| node.has_seen(frame.agent, frame.seq))
    }

    /// Returns true if the frame comes from a sidecar process that another one has replaced.
    pub fn is_late(&mut self, frame: &Frame) -> bool {
        let node = self.nodes.get_mut(&frame.node);
        node.is_some_and(|node| node.is_past(frame.agent))
    }

    /// Records a late frame that was not received before. It fills a gap and is no sign of life. Its steps and troubles
    /// count; its other events do not, because the new sidecar process has reported the state again.
    pub fn observe_late(&mut self, at: Time, frame: &Frame) {
        if let Some(node) = self.nodes.get_mut(&frame.node) {
            node.accept_late(frame.agent, frame.seq);
        }
        match &frame.event {
            Event::Step(step) => self.step(step),
            Event::Trouble(_) => self.endings.take(at, frame),
            _ => {}
        }
    }

    /// Returns the frame with the job's restart count in place of its node's.
    pub fn counted<'a>(&mut self, frame: &'a Frame) -> Cow<'a, Frame> {
        let mut generations = std::mem::take(&mut self.generations);
        let counted = generations.counted(frame, self);
        self.generations = generations;
        counted
    }

    /// Records a frame that was not received before.
    pub fn observe(&mut self, at: Time, frame: &Frame) {
        self.receive(at, frame);
        self.endings.take(at, frame);
        if self.begins_epoch(&frame.event) {
            self.members.clear();
            self.endings.survived();
        }
        match &frame.event {
            Event::Attach(attach) => self.attach(&frame.node, attach),
            Event::Step(step) => self.step(step),
            Event::Gpu(_) => self.saw(Signal::S3),
            Event::Host(_) => self.saw(Signal::S4),
            Event::Comm(_) => self.saw(Signal::S1),
            Event::Detach(detach) if detach.restart == self.restart => {
                if let Some(member) = self.member_mut(detach.rank) {
                    member.ended = true;
                }
            }
            Event::Layout(layout) if layout.restart == self.restart => {
                let layout = *layout;
                if let Some(member) = self.member_mut(layout.rank) {
                    let known = member.layout.replace(layout);
                    self.shape += u64::from(known != Some(layout));
                }
            }
            Event::Agent(agent) => {
                self.shape += 1;
                if let Some(node) = self.nodes.get_mut(&frame.node) {
                    node.rack = agent.rack.clone();
                }
                for source in &agent.sources {
                    if !self.sources.contains(source) && self.sources.len() < 64 {
                        self.sources.push(source.clone());
                    }
                }
            }
            Event::Source(state) => {
                let key = (frame.node.clone(), state.source.clone());
                if state.trouble.is_empty() {
                    self.mute.remove(&key);
                } else if self.mute.len() < MAX_MUTE {
                    self.mute.insert(key, state.trouble.clone());
                }
            }
            // The command of this node has ended, and every rank on the node with it.
            Event::Exit(_) => {
                for member in self
                    .members
                    .iter_mut()
                    .flatten()
                    .filter(|member| member.node == frame.node)
                {
                    member.ended = true;
                }
            }
            _ => {}
        }
    }

    fn step(&mut self, step: &Step) {
        if step.restart != self.restart {
            return;
        }
        self.saw(step.signal);
        if let Some(member) = self.member_mut(step.rank) {
            member.first_step.get_or_insert(step.step);
            member.last_step = member.last_step.max(step.step);
            member.steps += 1;
        }
    }

    /// Restarts the silence of all nodes at `now`, because frames from before will not arrive. Otherwise nodes would
    /// become late.
    pub fn resume(&mut self, now: Time, is_unheard: impl Fn(&NodeId) -> bool) {
        for (name, node) in self.nodes.iter_mut() {
            if !node.left && !is_unheard(name) {
                (node.last_heard, node.silent_from) = (now, now);
            }
        }
    }

    /// Excludes the time `missed`, in which the aggregator received nothing, from the silence of all nodes.
    pub fn excuse(&mut self, missed: Duration) {
        for (_, node) in self.nodes.iter_mut() {
            node.silent_from = node.silent_from + missed;
        }
    }

    fn saw(&mut self, signal: Signal) {
        if let Err(place) = self.signals.binary_search(&signal) {
            self.signals.insert(place, signal);
        }
    }

    fn member_mut(&mut self, rank: Rank) -> Option<&mut Member> {
        self.members.get_mut(rank.0 as usize)?.as_deref_mut()
    }

    /// Records the frame for its node. Detects gaps and new sidecar processes.
    pub fn receive(&mut self, at: Time, frame: &Frame) {
        let new = || Node::new(at, frame.agent);
        let Some(node) = self.nodes.get_or_insert_with(&frame.node, new) else {
            return;
        };
        if !node.is_watched_by(frame.agent) {
            if !node.left {
                let why = "its sidecar was restarted";
                self.gaps.add(&frame.node, node.last_heard, at, why);
            }
            node.begin_incarnation(at, frame.agent);
        }
        node.on_event(at, frame.seq, &frame.event);
    }

    /// Returns true if the event starts a new group of ranks. This is a restart, a resize, or the same rank in another
    /// process (because the script runs a second training or was started again).
    pub fn begins_epoch(&self, event: &Event) -> bool {
        let Event::Attach(attach) = event else {
            return false;
        };
        if !is_believable(attach) {
            return false;
        }
        let resized = self.world_size != 0 && attach.world_size != self.world_size;
        let replaced = self
            .member(attach.rank)
            .is_some_and(|known| !known.may_be(attach.pid));
        attach.restart > self.restart || attach.restart == self.restart && (resized || replaced)
    }

    fn attach(&mut self, node: &NodeId, attach: &Attach) {
        let index = attach.rank.0 as usize;
        let outside = attach.world_size != 0 && attach.rank.0 >= attach.world_size;
        if outside || !is_believable(attach) {
            self.misfit.get_or_insert((attach.rank, attach.world_size));
        }
        if !is_believable(attach) || attach.restart < self.restart {
            return;
        }
        self.shape += 1;
        self.restart = attach.restart;
        self.world_size = attach.world_size;
        if index >= self.members.len() {
            self.members.resize(index + 1, None);
        }
        let known = self.members[index].take();
        let (layout, first_step, last_step, steps) = known.map_or((None, None, 0, 0), |known| {
            (known.layout, known.first_step, known.last_step, known.steps)
        });
        self.members[index] = Some(Box::new(Member {
            node: node.clone(),
            gpu: attach.gpu.clone(),
            role: attach.role.clone(),
            layout,
            pid: attach.pid,
            is_by_collectives: attach.framework.split(' ').next() == Some("nccl"),
            first_step,
            last_step,
            steps,
            ended: false,
        }));
    }
}

/// Returns true if the rank and world size are plausible. If they are beyond all limits, an environment variable is
/// wrong, and ranks that cannot exist must not be expected.
fn is_believable(attach: &Attach) -> bool {
    attach.rank.0 < MAX_RANKS && attach.world_size <= MAX_RANKS
}
