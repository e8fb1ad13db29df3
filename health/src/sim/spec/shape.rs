//! The target and time range of a fault. The target is a rank, a node, a rack or all ranks. The fault can be permanent,
//! intermittent or moving.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::sim::chance::Chance;

/// The target of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// One rank: `rank=3`.
    Rank(u32),
    /// Every rank of a node: `node=1`.
    Node(u32),
    /// Every rank of a rack: `rack=0`.
    Rack(u32),
    /// Every rank: `rank=all`.
    All,
}

/// The steps in which a fault is active: `from=100 until=400 every=40 for=20 moves=50`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct When {
    /// First step.
    pub from: u64,
    /// First step after the fault, or `None` if it never ends.
    pub until: Option<u64>,
    /// For an intermittent fault, the interval in steps at which it recurs.
    pub every: Option<u64>,
    /// For an intermittent fault, the number of steps that it lasts each time.
    pub lasts: Option<u64>,
    /// For a moving fault, the number of steps after which its target changes to another rank, node or rack.
    pub moves: Option<u64>,
}

impl Default for When {
    fn default() -> When {
        When {
            from: 1,
            until: None,
            every: None,
            lasts: None,
            moves: None,
        }
    }
}

/// The placement of ranks, for resolving targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct House {
    pub ranks: u32,
    pub gpus_per_node: u32,
    pub nodes: u32,
    pub racks: u32,
}

impl House {
    pub fn node_of(&self, rank: u32) -> u32 {
        rank / self.gpus_per_node
    }

    /// Returns the rack of a node. Nodes are assigned to racks in order, as evenly as possible.
    pub fn rack_of(&self, node: u32) -> u32 {
        let rack = u64::from(node) * u64::from(self.racks.max(1)) / u64::from(self.nodes.max(1));
        rack as u32
    }
}

impl When {
    /// Returns true if the fault is active in this step.
    pub(crate) fn holds(&self, step: u64) -> bool {
        if step < self.from || self.until.is_some_and(|until| step >= until) {
            return false;
        }
        match (self.every, self.lasts) {
            (Some(every), Some(lasts)) => (step - self.from) % every.max(1) < lasts,
            _ => true,
        }
    }

    /// Returns the target in this step of a fault that starts at `target`. `key` gives each fault its own sequence of
    /// targets.
    pub(crate) fn target(&self, target: Target, step: u64, house: &House, key: &[u64]) -> Target {
        let (Some(moves), true) = (self.moves, step >= self.from) else {
            return target;
        };
        let hop = (step - self.from) / moves.max(1);
        let wander = |from: u32, of: u32| {
            if hop == 0 || of < 2 {
                return from;
            }
            // A stride below the count always leads to another target. Two alternating strides are used, because a
            // single one might visit only some of the targets.
            let stride = |n: u64| 1 + Chance::of(n, key).bits() % u64::from(of - 1);
            let way = hop.div_ceil(2) * stride(0) + hop / 2 * stride(1);
            ((u64::from(from) + way) % u64::from(of)) as u32
        };
        match target {
            Target::Rank(rank) => Target::Rank(wander(rank, house.ranks)),
            Target::Node(node) => Target::Node(wander(node, house.nodes)),
            Target::Rack(rack) => Target::Rack(wander(rack, house.racks)),
            Target::All => Target::All,
        }
    }

    /// Returns true if the fault is neither intermittent nor moving.
    pub fn is_steady(&self) -> bool {
        self.every.is_none() && self.moves.is_none()
    }
}

impl Target {
    /// Returns true if a rank is part of the target.
    pub(crate) fn strikes(self, rank: u32, house: &House) -> bool {
        match self {
            Target::Rank(whom) => whom == rank,
            Target::Node(node) => house.node_of(rank) == node,
            Target::Rack(rack) => house.rack_of(house.node_of(rank)) == rack,
            Target::All => true,
        }
    }

    /// Returns the kind and number of the target, if it is a single one.
    pub(crate) fn names(self) -> Option<(&'static str, u32)> {
        match self {
            Target::Rank(rank) => Some(("rank", rank)),
            Target::Node(node) => Some(("node", node)),
            Target::Rack(rack) => Some(("rack", rack)),
            Target::All => None,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.names() {
            Some((what, number)) => write!(f, "{what}={number}"),
            None => f.write_str("rank=all"),
        }
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from={}", self.from)?;
        let rest = [
            ("until", self.until),
            ("every", self.every),
            ("for", self.lasts),
            ("moves", self.moves),
        ];
        for (key, value) in rest {
            if let Some(value) = value {
                write!(f, " {key}={value}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUSE: House = House {
        ranks: 16,
        gpus_per_node: 4,
        nodes: 4,
        racks: 2,
    };

    #[test]
    fn a_fault_that_moves_is_elsewhere_each_time_and_always_somewhere() {
        for seed in 0..50 {
            let when = When {
                from: 10,
                moves: Some(50),
                ..When::default()
            };
            let at = |step| when.target(Target::Rank(3), step, &HOUSE, &[seed]);
            assert_eq!(at(10), Target::Rank(3));
            assert_eq!(at(59), Target::Rank(3));
            for hop in 0..20 {
                assert_ne!(at(10 + 50 * hop), at(60 + 50 * hop), "seed {seed} hop {hop}");
                assert_eq!(at(60 + 50 * hop), at(60 + 50 * hop + 49));
            }
        }
    }

    #[test]
    fn intermittent_counts_from_its_first_step() {
        let when = When {
            from: 11,
            until: Some(100),
            every: Some(40),
            lasts: Some(20),
            ..When::default()
        };
        let there: Vec<u64> = (0..200).filter(|step| when.holds(*step)).collect();
        let expected: Vec<u64> = (11..31).chain(51..71).chain(91..100).collect();
        assert_eq!(there, expected);
    }

    #[test]
    fn racks_hold_their_nodes_in_order() {
        let racks: Vec<u32> = (0..4).map(|node| HOUSE.rack_of(node)).collect();
        assert_eq!(racks, [0, 0, 1, 1]);
        let struck: Vec<u32> = (0..16)
            .filter(|rank| Target::Rack(1).strikes(*rank, &HOUSE))
            .collect();
        assert_eq!(struck, (8..16).collect::<Vec<u32>>());
    }
}
