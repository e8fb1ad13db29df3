//! Attributes slow communicators to the nodes that explain them.
//!
//! A transfer is as slow as the slowest link that it crosses. The excess of each communicator over its usual transfer
//! is fitted by nonnegative effects of the nodes that it spans (least squares by coordinate descent). A node is to
//! blame if the fit shows an effect of it and none of its communicators is fast. An excess that two nodes have only
//! with each other belongs to the link between them. Nodes that always appear together cannot be distinguished, and the
//! finding says so.

use std::collections::{BTreeMap, BTreeSet};

/// Number of sweeps of the fit, which converges within a few.
const SWEEPS: usize = 64;
/// Effects below this share of their communicators' excess are treated as residue of the fit.
const LEAST: f64 = 0.5;
/// Minimum share of a node's communicators that must be slow.
const MOST: f64 = 0.8;

/// One communicator that spans several nodes.
#[derive(Clone, Debug)]
pub struct Crossing {
    /// The nodes, sorted.
    pub nodes: Vec<u32>,
    /// Transfer time divided by the usual one, minus 1.
    pub excess: f64,
    pub is_slow: bool,
}

/// The nodes that explain some of the slow communicators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blame {
    /// The candidates, one of which is to blame. If `pair` is set, it is the link between the two nodes or either end
    /// of it.
    pub nodes: Vec<u32>,
    pub pair: bool,
    /// Indices of the crossings that these nodes explain.
    pub explains: Vec<usize>,
}

/// Returns nodes that together explain every slow crossing.
pub fn explain(crossings: &[Crossing]) -> Vec<Blame> {
    let mut blames = guilty(crossings);
    let explained: BTreeSet<usize> = blames.iter().flat_map(|blame| blame.explains.clone()).collect();
    let mut left: BTreeMap<&[u32], Vec<usize>> = BTreeMap::new();
    for (index, crossing) in crossings.iter().enumerate() {
        if crossing.is_slow && !explained.contains(&index) {
            left.entry(&crossing.nodes).or_default().push(index);
        }
    }
    blames.extend(left.into_iter().map(|(nodes, explains)| Blame {
        pair: nodes.len() == 2,
        nodes: nodes.to_vec(),
        explains,
    }));
    blames
}

/// Returns the nodes (or sets of nodes that cannot be distinguished) whose crossings are slow, ordered by the excess
/// that the fit attributes to them.
fn guilty(crossings: &[Crossing]) -> Vec<Blame> {
    let mut of_node: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (index, crossing) in crossings.iter().enumerate() {
        for node in &crossing.nodes {
            of_node.entry(*node).or_default().push(index);
        }
    }
    // Nodes with the same crossings are one unknown of the fit.
    let mut alike: BTreeMap<Vec<usize>, Vec<u32>> = BTreeMap::new();
    for (node, rows) in of_node {
        alike.entry(rows).or_default().push(node);
    }
    let effects = effects(crossings, &alike);
    let mut blames = Vec::new();
    for ((rows, nodes), effect) in alike.into_iter().zip(effects) {
        let slow: Vec<usize> = rows
            .iter()
            .copied()
            .filter(|row| crossings[*row].is_slow)
            .collect();
        let mean = slow.iter().map(|row| crossings[*row].excess).sum::<f64>() / slow.len().max(1) as f64;
        let is_guilty = effect >= LEAST * mean && slow.len() as f64 >= MOST * rows.len() as f64;
        if slow.is_empty() || !is_guilty {
            continue;
        }
        // If a node communicates with only one other, it may be its own end, the other's end, or the link in between.
        let only = &crossings[slow[0]].nodes;
        let pair = only.len() == 2 && slow.iter().all(|row| crossings[*row].nodes == *only);
        blames.push(Blame {
            nodes: if pair { only.clone() } else { nodes },
            pair,
            explains: slow,
        });
    }
    blames.dedup_by(|a, b| a.nodes == b.nodes && a.explains == b.explains);
    blames
}

/// Returns the effect of each set of nodes, in order.
fn effects(crossings: &[Crossing], alike: &BTreeMap<Vec<usize>, Vec<u32>>) -> Vec<f64> {
    let mut effects = vec![0.0; alike.len()];
    let mut left: Vec<f64> = crossings
        .iter()
        .map(|crossing| crossing.excess.max(0.0))
        .collect();
    for _ in 0..SWEEPS {
        for (rows, effect) in alike.keys().zip(&mut effects) {
            let mean = rows.iter().map(|row| left[*row]).sum::<f64>() / rows.len() as f64;
            let next = (*effect + mean).max(0.0);
            for row in rows {
                left[*row] -= next - *effect;
            }
            *effect = next;
        }
    }
    effects
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crossings(spec: &[(&[u32], f64)]) -> Vec<Crossing> {
        let crossing = |(nodes, ratio): &(&[u32], f64)| Crossing {
            nodes: nodes.to_vec(),
            excess: ratio - 1.0,
            is_slow: *ratio >= 1.3,
        };
        spec.iter().map(crossing).collect()
    }

    fn blame(nodes: &[u32], pair: bool, explains: &[usize]) -> Blame {
        Blame {
            nodes: nodes.to_vec(),
            pair,
            explains: explains.to_vec(),
        }
    }

    #[test]
    fn who_is_to_blame() {
        let fast = 1.02;
        for (name, spec, expected) in [
            ("nobody", vec![(&[0, 1][..], fast), (&[1, 2], 0.97)], vec![]),
            (
                "one node in all that are slow",
                vec![
                    (&[0, 1][..], 3.0),
                    (&[0, 2], 3.1),
                    (&[1, 2], fast),
                    (&[2, 3], fast),
                ],
                vec![blame(&[0], false, &[0, 1])],
            ),
            (
                "the link between two that are fast with others",
                vec![(&[0, 1][..], 3.0), (&[0, 2], fast), (&[1, 3], fast)],
                vec![blame(&[0, 1], true, &[0])],
            ),
            (
                "two nodes at once",
                vec![
                    (&[0, 1][..], 3.0),
                    (&[0, 2], 3.0),
                    (&[3, 4], 2.0),
                    (&[3, 5], 2.0),
                    (&[1, 4], fast),
                    (&[2, 5], fast),
                ],
                vec![blame(&[0], false, &[0, 1]), blame(&[3], false, &[2, 3])],
            ),
            (
                "nodes that are always together",
                vec![(&[0, 1, 2][..], 3.0), (&[0, 1, 2], 3.0)],
                vec![blame(&[0, 1, 2], false, &[0, 1])],
            ),
            (
                "one rail of all nodes",
                vec![(&[0, 1, 2][..], 3.0), (&[0, 1, 2], fast), (&[0, 1, 2], fast)],
                vec![blame(&[0, 1, 2], false, &[0])],
            ),
            (
                "two nodes are a pair however many communicators join them",
                vec![(&[0, 1][..], 3.0), (&[0, 1], 2.8)],
                vec![blame(&[0, 1], true, &[0, 1])],
            ),
            (
                "a ring tells by who is in it",
                vec![
                    (&[0, 1, 2, 3][..], 2.0),
                    (&[0, 1, 2, 3], 2.0),
                    (&[0, 1], fast),
                    (&[1, 2], fast),
                    (&[2, 3], 2.0),
                    (&[0, 3], 2.1),
                ],
                vec![blame(&[3], false, &[0, 1, 4, 5])],
            ),
        ] {
            assert_eq!(explain(&crossings(&spec)), expected, "{name}");
        }
    }
}
