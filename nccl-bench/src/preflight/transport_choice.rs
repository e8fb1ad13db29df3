//! Chooses the transport of a group and gives the reason. It is NCCL if every node of the group has NCCL, otherwise
//! TCP. The first node decides, and the report contains the decision. A group never changes its transport.

use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_health::id::NodeId;
use serde::{Deserialize, Serialize};

/// Whether a node's GPUs can be measured over NCCL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Nccl {
    /// NCCL can be used.
    Ready {
        /// Version of the library.
        version: Arc<str>,
        /// Number of GPUs visible to a process.
        gpus: u32,
    },
    /// NCCL cannot be used.
    Not {
        /// The reason.
        why: Arc<str>,
    },
}

/// The transport of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransportChoice {
    /// Sockets, one rank per node.
    #[default]
    Tcp,
    /// NCCL, one rank per GPU.
    Nccl(Team),
}

/// The NCCL ranks of a group. Those of the first node come first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Team {
    /// Version of the library, the same on all nodes.
    pub version: Arc<str>,
    /// Number of GPUs of each node, in node order.
    pub gpus: Vec<u32>,
    /// True if each rail is measured too. A rail has the GPUs with the same index, one per node.
    pub rails: bool,
}

impl Team {
    /// Returns the number of ranks.
    pub fn ranks(&self) -> usize {
        self.gpus.iter().map(|gpus| *gpus as usize).sum()
    }

    /// Returns the first rank of a node.
    pub fn first_of(&self, node: usize) -> usize {
        self.gpus.iter().take(node).map(|gpus| *gpus as usize).sum()
    }

    /// Returns the node and the GPU of a rank.
    pub fn place_of(&self, rank: usize) -> Option<(usize, u32)> {
        let node = (0..self.gpus.len())
            .rev()
            .find(|node| self.first_of(*node) <= rank)
            .filter(|_| rank < self.ranks())?;
        Some((node, u32::try_from(rank - self.first_of(node)).ok()?))
    }

    /// Returns the number of rails to measure, which is the number of GPUs per node if that is the same for all nodes.
    pub fn rails(&self) -> Option<u32> {
        let first = *self.gpus.first()?;
        let is_even = self.gpus.iter().all(|gpus| *gpus == first);
        (self.rails && self.gpus.len() > 1 && first > 1 && is_even).then_some(first)
    }
}

/// Returns the transport for `nodes`, and the reason if it is TCP.
pub(super) fn choose(
    nodes: &[NodeId],
    known: &BTreeMap<NodeId, Nccl>,
    rails: bool,
) -> (TransportChoice, Arc<str>) {
    let mut gpus = Vec::new();
    let mut versions: Vec<(&NodeId, &Arc<str>)> = Vec::new();
    let tcp = |why: String| (TransportChoice::Tcp, Arc::from(why));
    for node in nodes {
        match known.get(node) {
            Some(Nccl::Ready { version, gpus: count }) => {
                gpus.push(*count);
                versions.push((node, version));
            }
            Some(Nccl::Not { why }) => return tcp(format!("{node}: {why}")),
            None => return tcp(format!("{node}: it is not known whether it has NCCL")),
        }
    }
    let Some((first, version)) = versions.first().copied() else {
        return tcp("there are no nodes".to_owned());
    };
    if let Some((other, theirs)) = versions.iter().find(|(_, theirs)| *theirs != version) {
        return tcp(format!("{first} has NCCL {version}, {other} {theirs}"));
    }
    if let [1] = gpus[..] {
        return tcp(format!("{first}: it has one GPU, and no second rank for a sum"));
    }
    let team = Team {
        version: Arc::clone(version),
        gpus,
        rails,
    };
    (TransportChoice::Nccl(team), "".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(version: &str, gpus: u32) -> Nccl {
        Nccl::Ready {
            version: version.into(),
            gpus,
        }
    }

    #[test]
    fn one_without_it_and_all_do_without() {
        let not = Nccl::Not { why: "no GPU".into() };
        let check = |known: &[Option<Nccl>], wanted: Result<usize, &str>| {
            let nodes: Vec<NodeId> = (1..=known.len())
                .map(|n| NodeId::from(&*format!("n{n}")))
                .collect();
            let known = nodes.iter().cloned().zip(known);
            let known = known
                .filter_map(|(node, nccl)| Some((node, nccl.clone()?)))
                .collect();
            match (choose(&nodes, &known, false), wanted) {
                ((TransportChoice::Nccl(team), _), Ok(ranks)) => assert_eq!(team.ranks(), ranks),
                ((TransportChoice::Tcp, why), Err(wanted)) => assert_eq!(&*why, wanted),
                (other, wanted) => panic!("{other:?}, not {wanted:?}"),
            }
        };
        let (old, new) = (ready("2.27.3", 8), ready("2.30.7", 8));
        check(&[Some(new.clone()), Some(new.clone())], Ok(16));
        check(&[Some(new.clone()), Some(ready("2.30.7", 4))], Ok(12));
        check(&[Some(ready("2.30.7", 1)), Some(ready("2.30.7", 1))], Ok(2));
        check(&[Some(new.clone()), Some(not)], Err("n2: no GPU"));
        check(
            &[Some(old), Some(new.clone())],
            Err("n1 has NCCL 2.27.3, n2 2.30.7"),
        );
        check(&[Some(new), None], Err("n2: it is not known whether it has NCCL"));
        check(
            &[Some(ready("2.30.7", 1))],
            Err("n1: it has one GPU, and no second rank for a sum"),
        );
    }

    #[test]
    fn ranks_are_counted_node_by_node() {
        let team = |gpus: &[u32]| Team {
            version: "".into(),
            gpus: gpus.to_vec(),
            rails: true,
        };
        let uneven = team(&[2, 3]);
        let places: Vec<_> = (0..6).map(|rank| uneven.place_of(rank)).collect();
        let right = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)].map(Some);
        assert_eq!(places[..5], right);
        assert_eq!((places[5], uneven.rails()), (None, None));
        assert_eq!(
            (team(&[4, 4]).rails(), team(&[4]).rails(), team(&[1, 1]).rails()),
            (Some(4), None, None)
        );
    }
}
