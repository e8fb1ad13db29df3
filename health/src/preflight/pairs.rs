//! Selects the next pairs of nodes to measure. The first pairs are disjoint. Later pairs combine suspects with good
//! nodes.

use std::collections::BTreeSet;

use super::links::{Ways, sort};
use super::{Place, PreflightTable, Sample};
use crate::id::NodeId;

/// Maximum number of rounds of pairs, for any number of nodes.
pub const MAX_ROUNDS: u32 = 3;

/// Two slow links to good nodes are enough to blame a node.
const ENOUGH: usize = 2;

/// Returns the pairs to measure in `round` (from 0) among `nodes`, the nodes that remain. The pairs are disjoint. The
/// result is empty if nothing is undecided.
pub fn next(
    table: &PreflightTable,
    nodes: &[NodeId],
    samples: &[Sample],
    round: u32,
) -> Vec<(NodeId, NodeId)> {
    let chosen = match round {
        0 => nodes.chunks_exact(2).map(|pair| (&pair[0], &pair[1])).collect(),
        1..MAX_ROUNDS => Chooser::new(table, nodes, samples).choose(),
        _ => Vec::new(),
    };
    chosen
        .into_iter()
        .map(|(a, b): (&NodeId, &NodeId)| (a.clone(), b.clone()))
        .collect()
}

struct Chooser<'a> {
    nodes: &'a [NodeId],
    all: Vec<Ways<'a>>,
    /// For each entry of `all`, the nodes with at least one good link.
    well: Vec<BTreeSet<&'a NodeId>>,
    met: BTreeSet<(&'a NodeId, &'a NodeId)>,
    free: BTreeSet<&'a NodeId>,
    pairs: Vec<(&'a NodeId, &'a NodeId)>,
}

impl<'a> Chooser<'a> {
    fn new(table: &PreflightTable, nodes: &'a [NodeId], samples: &'a [Sample]) -> Chooser<'a> {
        let met = samples.iter().filter_map(|sample| match &sample.place {
            Place::Pair { a, b } => Some((a, b)),
            _ => None,
        });
        let all = sort(table, samples);
        Chooser {
            nodes,
            well: all.iter().map(Ways::well).collect(),
            all,
            met: met.collect(),
            free: nodes.iter().collect(),
            pairs: Vec::new(),
        }
    }

    fn choose(mut self) -> Vec<(&'a NodeId, &'a NodeId)> {
        let nodes = self.nodes;
        let suspects: Vec<&NodeId> = nodes.iter().filter(|node| self.is_open(node)).collect();
        for suspect in suspects {
            let partner = self.partner(suspect);
            self.pair_up(suspect, partner);
        }
        self.repeat_slow_ways();
        // If no node is known to be good (with three nodes, for example), undecided nodes are paired with each other.
        let open: Vec<&NodeId> = nodes.iter().filter(|node| self.is_open(node)).collect();
        for node in open {
            let other = nodes
                .iter()
                .find(|other| *other != node && self.free.contains(other) && !self.have_met(node, other));
            self.pair_up(node, other);
        }
        self.pairs
    }

    fn pair_up(&mut self, node: &'a NodeId, partner: Option<&'a NodeId>) {
        let Some(partner) = partner.filter(|_| self.free.contains(node)) else {
            return;
        };
        self.free.remove(node);
        self.free.remove(partner);
        self.pairs.push((node, partner));
    }

    fn have_met(&self, one: &NodeId, other: &NodeId) -> bool {
        self.met.contains(&(one, other)) || self.met.contains(&(other, one))
    }

    fn is_well(&self, node: &NodeId) -> bool {
        !self.well.is_empty() && self.well.iter().all(|well| well.contains(node))
    }

    /// Returns true if the node is undecided and another link would help. With three nodes, a slow node makes two of
    /// the three links equally slow, so all three links are tried.
    fn is_open(&self, node: &NodeId) -> bool {
        if self.nodes.len() == 3 {
            return self
                .nodes
                .iter()
                .any(|other| other != node && !self.have_met(node, other));
        }
        if self.is_well(node) {
            return false;
        }
        let to_well = self.all.iter().zip(&self.well).map(|(ways, well)| {
            ways.slow_of(node)
                .filter(|(_, other)| well.contains(other))
                .count()
        });
        to_well.max().unwrap_or(0) < ENOUGH
    }

    fn partner(&self, node: &NodeId) -> Option<&'a NodeId> {
        let can = |other: &&NodeId| self.free.contains(other) && *other != node && self.is_well(other);
        self.nodes
            .iter()
            .find(|other| can(other) && !self.have_met(node, other))
    }

    /// Links that were slow once between two good nodes may be chance, so they are measured again.
    fn repeat_slow_ways(&mut self) {
        let mut again: Vec<(&NodeId, &NodeId)> = Vec::new();
        for (ways, well) in self.all.iter().zip(&self.well) {
            let slow = ways
                .ways
                .iter()
                .filter(|way| way.severity.is_some() && way.times < 2);
            again.extend(
                slow.filter(|way| well.contains(way.a) && well.contains(way.b))
                    .map(|way| (way.a, way.b)),
            );
        }
        for (a, b) in again {
            let of_nodes = |node: &NodeId| self.nodes.iter().find(|known| *known == node);
            if let Some((a, b)) = of_nodes(a).zip(of_nodes(b))
                && self.free.contains(a)
                && self.free.contains(b)
            {
                self.pair_up(a, Some(b));
            }
        }
    }
}
