//! Chooses the values of `{rank}`, `{other}`, `{node}`, `{peer}` and `{rack}` in a scenario's texts.

use paceline_health::sim::WorldSpec;
use paceline_health::sim::chance::Chance;

/// The subjects chosen by the seed.
pub(super) struct Chosen {
    rank: u32,
    other: u32,
    node: u32,
    peer: u32,
    rack: u32,
}

impl Chosen {
    /// Chooses the subjects by the world's seed.
    pub(super) fn of(spec: &WorldSpec) -> Chosen {
        let mut chance = Chance::of(spec.seed, &[0x0073_7569_7465]);
        let mut below = |count: u32| (chance.unit() * f64::from(count.max(1))) as u32;
        let (ranks, nodes) = (spec.ranks(), spec.nodes);
        let (rank, node) = (below(ranks), below(nodes));
        // Put the other rank on another node if there is one, because two slow ranks of one node could be the node's
        // fault.
        let other = if nodes > 1 {
            let elsewhere = (rank / spec.gpus_per_node + 1 + below(nodes - 1)) % nodes;
            elsewhere * spec.gpus_per_node + below(spec.gpus_per_node)
        } else {
            (rank + 1 + below(ranks.saturating_sub(1))) % ranks.max(1)
        };
        Chosen {
            rank,
            other,
            node,
            peer: (node + 1 + below(nodes.saturating_sub(1))) % nodes.max(1),
            rack: below(spec.racks),
        }
    }

    /// Returns the text with its placeholders filled in.
    pub(super) fn fill(&self, text: &str) -> String {
        [
            ("{rank}", self.rank),
            ("{other}", self.other),
            ("{node}", self.node),
            ("{peer}", self.peer),
            ("{rack}", self.rack),
        ]
        .iter()
        .fold(text.to_owned(), |text, (word, number)| {
            text.replace(word, &number.to_string())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_slow_ranks_are_never_one() {
        let mut spec = WorldSpec::parse("nodes=4").unwrap();
        for seed in 0..200 {
            spec.seed = seed;
            let chosen = Chosen::of(&spec);
            assert_ne!(chosen.rank, chosen.other);
            assert_ne!(chosen.node, chosen.peer);
            assert!(chosen.rank < 32 && chosen.other < 32 && chosen.peer < 4);
        }
    }
}
