//! Finds what slow ranks share. If several are slow alike, the problem may be in a rank, a node, a rack, or the job.

use super::cusum::Bar;
use super::open_straggler::Extent;
use crate::detect::step::history::History;
use crate::detect::step::plan::Plan;
use crate::id::Rank;
use crate::policy::StragglerThresholds;

/// The smallest unit that explains the slow ranks, and the slow ranks in it.
#[derive(Debug)]
pub struct Located {
    pub extent: Extent,
    pub members: Vec<Rank>,
}

/// Number of standard errors by which a mean must stand out.
const SURE: f64 = 3.0;

/// Returns the sorted ranks whose mean since `start` is above their peers' by at least half of `alternative` and by
/// more than the noise. `bar` is that of the test that found one of them.
pub fn slow_since(history: &History, plan: &Plan, start: u64, alternative: f64, bar: &Bar) -> Vec<Rank> {
    let mut sums: Vec<(f64, u32)> = Vec::new();
    // Limit each step, so that an extreme one counts no more than one that fits the alternative.
    let most = alternative + SURE * bar.sigma;
    for row in history.steady_since(start) {
        if row.x.len() > sums.len() {
            sums.resize(row.x.len(), (0.0, 0));
        }
        for ((sum, count), x) in sums.iter_mut().zip(&row.x) {
            if !x.is_nan() {
                *sum += (f64::from(*x) - bar.center).clamp(-most, most);
                *count += 1;
            }
        }
    }
    let is_slow = |(sum, count): &(f64, u32)| {
        let n = f64::from(*count);
        *count > 0 && sum / n >= (alternative / 2.0).max(SURE * bar.sigma / n.sqrt())
    };
    (0..)
        .map(Rank)
        .zip(&sums)
        .filter(|(rank, sum)| is_slow(sum) && plan.place(*rank).is_some())
        .map(|(rank, _)| rank)
        .collect()
}

/// Locates the problem of `rank`, given all slow ranks (`slow` includes `rank`).
pub fn locate(rank: Rank, slow: &[Rank], plan: &Plan, table: &StragglerThresholds) -> Located {
    let alone = Located {
        extent: Extent::Rank(rank),
        members: vec![rank],
    };
    let Some(place) = plan.place(rank) else {
        return alone;
    };
    let slow_of = |ranks: &[Rank]| -> Vec<Rank> {
        ranks
            .iter()
            .copied()
            .filter(|rank| slow.binary_search(rank).is_ok())
            .collect()
    };
    // A unit that contains all ranks is left out, because it distinguishes none of them.
    let is_whole = |members: &[Rank], ranks: &[Rank]| {
        ranks.len() > 1 && ranks.len() < plan.ranks && members.len() >= 2 && members.len() * 2 >= ranks.len()
    };
    let (node, ranks) = &plan.nodes[place.node as usize];
    let on_node = slow_of(ranks);
    let mut found = is_whole(&on_node, ranks).then(|| Located {
        extent: Extent::Node(node.clone()),
        members: on_node,
    });
    if let Some(rack) = place.rack {
        let (name, ranks) = &plan.racks[rack as usize];
        let in_rack = slow_of(ranks);
        if is_whole(&in_rack, ranks) && nodes_of(&in_rack, plan) > 1 {
            found = Some(Located {
                extent: Extent::Rack(name.clone()),
                members: in_rack,
            });
        }
    }
    let together = slow.len();
    let role = &plan.roles[place.role as usize].members;
    let of_role = slow_of(role).len();
    let many = together >= table.correlated_min_ranks as usize
        && (together as f64 > table.correlated_ratio * plan.ranks as f64 || of_role * 2 > role.len());
    // If one unit contains nearly all slow ranks, it explains them, however many they are.
    let explained = found
        .as_ref()
        .is_some_and(|found| found.members.len() * 5 >= together * 4);
    if many && !explained {
        return Located {
            extent: Extent::Job,
            members: slow.to_vec(),
        };
    }
    found.unwrap_or(alone)
}

fn nodes_of(ranks: &[Rank], plan: &Plan) -> usize {
    let mut nodes: Vec<u32> = ranks
        .iter()
        .filter_map(|rank| Some(plan.place(*rank)?.node))
        .collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes.len()
}
