//! The places of ranks: roles, replicas, stages, nodes, racks. The plan is built from the ranks' declarations, and
//! rebuilt when these change.
//!
//! Ranks of one role do the same work, and the peers of a rank are the other ranks of its role. A role is a position in
//! the parallel layout together with a GPU model. If that leaves too few ranks to compare, positions that share the
//! same work (tensor and context, then expert) are merged.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::detect::members::roster::{Member, Roster};
use crate::event::Axis;
use crate::id::{NodeId, Rank};

/// The place of one rank, as indices into the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub role: u32,
    /// The pipeline of the rank, and its stage in that pipeline.
    pub replica: u32,
    pub stage: u32,
    pub node: u32,
    pub rack: Option<u32>,
}

/// Ranks that do the same work.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Role {
    /// Name for display, such as `stage 3` or `stage 3 expert 1`. It is empty if all ranks are alike.
    pub name: Arc<str>,
    /// Index into `groups` of the plan. Roles share a group if they do the same work and differ only in the GPU model.
    pub group: u32,
    /// True if the role belongs to one expert.
    pub is_expert: bool,
    /// The members, sorted.
    pub members: Vec<Rank>,
}

/// The places of all ranks.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Plan {
    places: Vec<Option<Place>>,
    pub roles: Vec<Role>,
    /// What roles of one group share: a stage if there are several, or else the declared role.
    pub groups: Vec<Arc<str>>,
    pub nodes: Vec<(NodeId, Vec<Rank>)>,
    pub racks: Vec<(Arc<str>, Vec<Rank>)>,
    /// Number of pipeline stages. It is one without a pipeline.
    pub stages: u32,
    pub replicas: u32,
    /// Declared number of micro-batches per step.
    pub micro_batches: Option<u32>,
    /// True if some rank declared its layout.
    pub is_declared: bool,
    pub ranks: usize,
}

/// The attributes that distinguish roles, from the narrowest to the widest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    declared: Arc<str>,
    stage: u32,
    expert: Option<u32>,
    slice: Option<(u32, u32)>,
    model: Arc<str>,
}

impl Plan {
    /// Creates the plan of the ranks in `roster`. `model` returns a member's GPU model. `learned` holds the stage and
    /// replica of ranks that declared none.
    pub fn new(
        roster: &Roster,
        min_peers: u32,
        model: impl Fn(&Member) -> Arc<str>,
        learned: &BTreeMap<Rank, (u32, u32)>,
    ) -> Plan {
        let mut plan = Plan {
            stages: 1,
            ..Plan::default()
        };
        let mut narrow: BTreeMap<Key, Vec<Rank>> = BTreeMap::new();
        let mut replicas: BTreeMap<(u32, u32), u32> = BTreeMap::new();
        let mut nodes: BTreeMap<&NodeId, u32> = BTreeMap::new();
        let mut racks: BTreeMap<Arc<str>, u32> = BTreeMap::new();
        for (rank, member) in roster.members() {
            let (key, replica) = place_of(rank, member, model(member), learned);
            plan.stages = plan.stages.max(key.stage + 1);
            if let Some(layout) = &member.layout {
                plan.is_declared = true;
                plan.stages = plan.stages.max(layout.pp.size.min(MAX_STAGES));
                if layout.micro_batches > 0 {
                    plan.micro_batches = Some(layout.micro_batches);
                }
            }
            let next = replicas.len() as u32;
            let replica = *replicas.entry(replica).or_insert(next);
            let next = nodes.len() as u32;
            let node = *nodes.entry(&member.node).or_insert_with(|| {
                plan.nodes.push((member.node.clone(), Vec::new()));
                next
            });
            plan.nodes[node as usize].1.push(rank);
            let rack = roster.rack_of(&member.node).map(|rack| {
                let next = racks.len() as u32;
                let index = *racks.entry(rack.clone()).or_insert_with(|| {
                    plan.racks.push((rack, Vec::new()));
                    next
                });
                plan.racks[index as usize].1.push(rank);
                index
            });
            let stage = key.stage;
            narrow.entry(key).or_default().push(rank);
            plan.rank_step(
                rank,
                Place {
                    role: 0,
                    replica,
                    stage,
                    node,
                    rack,
                },
            );
        }
        plan.replicas = replicas.len() as u32;
        // A pipeline with far more places than ranks is not plausible. A single rank may have declared it, or the
        // others have not declared theirs yet.
        let places = u64::from(plan.stages) * u64::from(plan.replicas);
        if places > MOST_PLACES * plan.ranks as u64 {
            plan.stages = 1;
        }
        for (key, members) in widen(narrow, min_peers as usize) {
            plan.enrol(key, members);
        }
        plan
    }

    /// Returns the place of a rank.
    pub fn place(&self, rank: Rank) -> Option<&Place> {
        self.places.get(rank.0 as usize)?.as_ref()
    }

    /// Returns the ranks of the same pipeline, including this one.
    pub fn pipeline(&self, rank: Rank) -> impl Iterator<Item = Rank> + '_ {
        let replica = self.place(rank).map(|place| place.replica);
        let places = self.places.iter().zip(0..);
        places
            .filter(move |(place, _)| place.as_ref().map(|place| place.replica) == replica)
            .map(|(_, rank)| Rank(rank))
    }

    /// Returns true if the roles are the same, whichever ranks fill them.
    pub fn has_roles_of(&self, other: &Plan) -> bool {
        let names =
            |plan: &Plan| -> Vec<Arc<str>> { plan.roles.iter().map(|role| role.name.clone()).collect() };
        names(self) == names(other)
    }

    fn rank_step(&mut self, rank: Rank, place: Place) {
        let index = rank.0 as usize;
        if index >= self.places.len() {
            self.places.resize(index + 1, None);
        }
        self.places[index] = Some(place);
        self.ranks += 1;
    }

    fn enrol(&mut self, key: Key, mut members: Vec<Rank>) {
        members.sort_unstable();
        for rank in &members {
            if let Some(Some(place)) = self.places.get_mut(rank.0 as usize) {
                place.role = self.roles.len() as u32;
            }
        }
        let name = key.name(self.stages);
        let group = if self.stages > 1 {
            format!("stage {}", key.stage).into()
        } else {
            name.clone()
        };
        let known = self.groups.iter().position(|known| *known == group);
        let index = known.unwrap_or(self.groups.len());
        if known.is_none() {
            self.groups.push(group);
        }
        self.roles.push(Role {
            name,
            group: index as u32,
            is_expert: key.expert.is_some(),
            members,
        });
    }
}

/// Maximum number of places (stages of replicas) per rank for a pipeline to be plausible. A complete pipeline has at
/// most one.
const MOST_PLACES: u64 = 2;
/// Maximum plausible number of pipeline stages.
const MAX_STAGES: u32 = 4096;

impl Key {
    fn name(&self, stages: u32) -> Arc<str> {
        let mut words = Vec::new();
        if !self.declared.is_empty() {
            words.push(self.declared.to_string());
        }
        if stages > 1 {
            words.push(format!("stage {}", self.stage));
        }
        if let Some(expert) = self.expert {
            words.push(format!("expert {expert}"));
        }
        if let Some((tensor, context)) = self.slice {
            words.push(format!("slice {tensor}.{context}"));
        }
        words.join(" ").into()
    }
}

/// Returns the key of a rank's role, and the rank's replica.
fn place_of(
    rank: Rank,
    member: &Member,
    model: Arc<str>,
    learned: &BTreeMap<Rank, (u32, u32)>,
) -> (Key, (u32, u32)) {
    let of = |axis: Axis| (axis.size > 1).then_some(axis.index);
    let declared = member.role.clone();
    if let Some(layout) = &member.layout {
        let slice = of(layout.tp).or(of(layout.cp)).is_some();
        let key = Key {
            declared,
            stage: layout.pp.index.min(MAX_STAGES - 1),
            expert: of(layout.ep),
            slice: slice.then_some((layout.tp.index, layout.cp.index)),
            model,
        };
        // Tensor and context slices of one replica wait for each other, so they share a replica number.
        return (key, (0, layout.dp.index));
    }
    let (stage, replica) = match learned.get(&rank) {
        Some((stage, replica)) => (*stage, (1, *replica)),
        None => (0, (2, rank.0)),
    };
    let key = Key {
        declared,
        stage,
        expert: None,
        slice: None,
        model,
    };
    (key, replica)
}

/// Merges roles until each has more than `min_peers` members, as long as the merged roles do the same work.
fn widen(narrow: BTreeMap<Key, Vec<Rank>>, min_peers: usize) -> BTreeMap<Key, Vec<Rank>> {
    let merge = |roles: BTreeMap<Key, Vec<Rank>>, wider: fn(&Key) -> Key| {
        let mut merged: BTreeMap<Key, Vec<Rank>> = BTreeMap::new();
        let smallest = roles.values().map(Vec::len).min().unwrap_or(0);
        if smallest > min_peers {
            return roles;
        }
        for (key, members) in roles {
            merged.entry(wider(&key)).or_default().extend(members);
        }
        merged
    };
    let slices = merge(narrow, |key| Key {
        slice: None,
        ..key.clone()
    });
    merge(slices, |key| Key {
        expert: None,
        ..key.clone()
    })
}
