//! The effect of link faults on the transfers of a step. Transfers over the affected link take longer.

use super::timeline::Roads;
use crate::sim::fault::Fault;
use crate::sim::fault::drag::{Drag, Without};
use crate::sim::spec::layout::Layout;
use crate::sim::spec::shape::Target;
use crate::verdict::Cause;

impl Drag {
    /// Returns the transfers of this step including link faults, or `None` if there are no link faults.
    pub(crate) fn roads(&self, plain: &Roads, layout: &Layout, without: Without) -> Option<Roads> {
        let struck = |index: usize, fault: &Fault| fault.is_of_transfer() && !without.skips(index);
        if !self.blows().iter().any(|blow| struck(blow.index, &blow.fault)) {
            return None;
        }
        let mut roads = plain.clone();
        for (group, reduce) in (0..).zip(&mut roads.reduce) {
            let (stage, tensor) = (group / layout.tp, group % layout.tp);
            let members = (0..layout.stage() / layout.tp)
                .map(move |member| stage * layout.stage() + tensor + layout.tp * member);
            *reduce *= self.toll(members, without);
        }
        for (cell, (exchange, hop)) in (0..).zip(roads.exchange.iter_mut().zip(&mut roads.hop)) {
            let first = cell * layout.cell();
            let ranks = first..first + layout.cell();
            *exchange *= self.toll(ranks.clone(), without);
            if first + layout.stage() < layout.stage() * layout.pp {
                let toll = |rank| self.toll([rank, rank + layout.stage()].into_iter(), without);
                *hop *= ranks.map(toll).fold(1.0, f64::max);
            }
        }
        Some(roads)
    }

    /// Returns the factor by which a transfer among these ranks is slower.
    fn toll(&self, members: impl Iterator<Item = u32> + Clone, without: Without) -> f64 {
        let mut toll = 1.0;
        for blow in self.blows() {
            let (factor, pays) = match blow.fault {
                Fault::Slow {
                    factor,
                    cause: Cause::Nvlink,
                    ..
                } => (factor, self.within(members.clone(), blow.on)),
                Fault::Slow {
                    factor,
                    cause: Cause::Network,
                    ..
                } => (factor, self.across(members.clone(), blow.on, None)),
                Fault::Link { factor, peer, .. } => (factor, self.across(members.clone(), blow.on, peer)),
                _ => continue,
            };
            if pays && !without.skips(blow.index) {
                toll *= factor;
            }
        }
        toll
    }

    /// Returns true if the ranks include an affected one and another one on its node.
    fn within(&self, members: impl Iterator<Item = u32> + Clone, on: Target) -> bool {
        let house = self.house();
        members.clone().any(|rank| {
            let node = house.node_of(rank);
            let mut others = members.clone();
            on.strikes(rank, house) && others.any(|other| other != rank && house.node_of(other) == node)
        })
    }

    /// Returns true if these ranks communicate over the network of an affected node, or over its link to `peer`.
    fn across(&self, members: impl Iterator<Item = u32> + Clone, on: Target, peer: Option<u32>) -> bool {
        let house = self.house();
        let struck = |node: u32| match on {
            Target::Rank(rank) => house.node_of(rank) == node,
            Target::Node(whom) => whom == node,
            Target::Rack(rack) => house.rack_of(node) == rack,
            Target::All => true,
        };
        let mut nodes = members.map(|rank| house.node_of(rank));
        let Some(first) = nodes.next() else { return false };
        let (mut apart, mut hit, mut met) = (false, struck(first), peer.is_none_or(|peer| peer == first));
        for node in nodes {
            apart |= node != first;
            hit |= struck(node);
            met |= peer.is_some_and(|peer| peer == node);
        }
        apart && hit && met
    }
}
