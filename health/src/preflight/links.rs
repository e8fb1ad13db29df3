//! Attributes a slow link between two nodes to one of the nodes, or to the link alone.
//!
//! All links of a slow node are slow, so a node is good if at least one of its links is good. A node is at fault if all
//! its links are slow and at least one of them leads to a node that is known to be good. A link is at fault if both its
//! ends are good and it was slow in each measurement. Everything else stays undecided and is reported as such.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Metric, NoiseLimits, Place, PreflightTable, Sample};
use crate::id::NodeId;
use crate::verdict::Severity;

/// All measurements of one link in one metric and rail.
#[derive(Clone, Debug)]
pub(super) struct Way<'a> {
    pub a: &'a NodeId,
    pub b: &'a NodeId,
    /// The best of the measured values.
    pub value: f64,
    /// The random error of a mean of passes, as a share.
    pub sigma: f64,
    /// Number of measurements.
    pub times: u32,
    /// How severe the link's slowness is, compared with the other links.
    pub severity: Option<Severity>,
}

impl<'a> Way<'a> {
    fn other(&self, node: &NodeId) -> Option<&'a NodeId> {
        match (self.a == node, self.b == node) {
            (true, _) => Some(self.b),
            (_, true) => Some(self.a),
            _ => None,
        }
    }
}

/// All links of one metric, condition and rail, compared with each other.
#[derive(Clone, Debug)]
pub(super) struct Ways<'a> {
    pub metric: Metric,
    pub rail: Option<u32>,
    pub ways: Vec<Way<'a>>,
    /// The value that the better half of the nodes reaches, or `None` if there is nothing to compare with.
    pub expected: Option<f64>,
}

/// The place at fault.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Blame {
    pub place: Place,
    pub or: Vec<Place>,
    pub severity: Severity,
    pub value: f64,
    pub sure: bool,
}

/// Groups the samples of pairs by link.
pub(super) fn sort<'a>(table: &PreflightTable, samples: &'a [Sample]) -> Vec<Ways<'a>> {
    type Key<'a> = (Metric, &'a Arc<str>, Option<u32>);
    let mut groups: BTreeMap<Key<'a>, BTreeMap<(&NodeId, &NodeId), Vec<&'a Sample>>> = BTreeMap::new();
    for sample in samples {
        if let Place::Pair { a, b } = &sample.place {
            let group = groups.entry((sample.metric, &sample.conditions, sample.rail));
            let ways = group.or_default();
            ways.entry((a, b)).or_default().push(sample);
        }
    }
    groups
        .into_iter()
        .map(|((metric, _, rail), ways)| Ways::of(table, metric, rail, ways))
        .collect()
}

impl<'a> Ways<'a> {
    fn of(
        table: &PreflightTable,
        metric: Metric,
        rail: Option<u32>,
        samples: BTreeMap<(&'a NodeId, &'a NodeId), Vec<&'a Sample>>,
    ) -> Ways<'a> {
        let row = table.metric(metric);
        let way = |((a, b), of): ((&'a NodeId, &'a NodeId), Vec<&'a Sample>)| {
            let best = of.iter().copied().reduce(|one, other| {
                let better = row.best(one.value, other.value);
                if better == one.value { one } else { other }
            })?;
            Some(Way {
                a,
                b,
                value: best.value,
                sigma: chance(best),
                times: u32::try_from(of.len()).unwrap_or(u32::MAX),
                severity: None,
            })
        };
        let ways = samples.into_iter().filter_map(way).collect();
        let mut all = Ways {
            metric,
            rail,
            ways,
            expected: None,
        };
        all.compare(table);
        all
    }

    fn compare(&mut self, table: &PreflightTable) {
        let row = table.metric(self.metric);
        let mut bests: Vec<f64> = self.best_of_nodes(table).into_values().collect();
        // Two nodes have only one link, so there is nothing to compare it with.
        if self.ways.len() < 2 {
            return;
        }
        bests.sort_by(|one, other| {
            if row.best(*one, *other) == *one {
                std::cmp::Ordering::Less
            } else {
                std::cmp::Ordering::Greater
            }
        });
        // Use the better of the two middle values, because if there are only two pairs, the better one shows what is
        // possible.
        let expected = bests[(bests.len() - 1) / 2];
        self.expected = Some(expected);
        let fleet = upper_spread(&bests, expected);
        for way in &mut self.ways {
            let sigma = way.sigma.hypot(fleet);
            way.severity = row.severity(way.value, expected, sigma, &table.noise);
        }
    }

    fn best_of_nodes(&self, table: &PreflightTable) -> BTreeMap<&'a NodeId, f64> {
        let row = table.metric(self.metric);
        let mut best: BTreeMap<&NodeId, f64> = BTreeMap::new();
        for way in &self.ways {
            for node in [way.a, way.b] {
                let known = best.entry(node).or_insert(way.value);
                *known = row.best(*known, way.value);
            }
        }
        best
    }

    /// Returns the nodes with at least one good link.
    pub fn well(&self) -> BTreeSet<&'a NodeId> {
        let well = self.ways.iter().filter(|way| way.severity.is_none());
        well.flat_map(|way| [way.a, way.b]).collect()
    }

    /// Returns the slow links of `node`.
    pub fn slow_of<'s>(&'s self, node: &'s NodeId) -> impl Iterator<Item = (&'s Way<'a>, &'a NodeId)> + 's {
        let slow = self.ways.iter().filter(|way| way.severity.is_some());
        slow.filter_map(move |way| Some((way, way.other(node)?)))
    }

    /// Returns the places at fault for slow links.
    pub fn blame(&self) -> Vec<Blame> {
        let well = self.well();
        let slow: Vec<&Way<'_>> = self.ways.iter().filter(|way| way.severity.is_some()).collect();
        let unwell: BTreeSet<&NodeId> = slow
            .iter()
            .flat_map(|way| [way.a, way.b])
            .filter(|node| !well.contains(node))
            .collect();
        let mut blamed: BTreeSet<&NodeId> = BTreeSet::new();
        let mut found: Vec<Blame> = Vec::new();
        for node in unwell {
            if let Some(blame) = self.blame_node(node, &well) {
                blamed.insert(node);
                found.push(blame);
            }
        }
        for way in slow {
            if blamed.contains(way.a) || blamed.contains(way.b) {
                continue;
            }
            let pair = Place::pair(way.a, way.b);
            let both_well = well.contains(way.a) && well.contains(way.b);
            // If a link between two good nodes was slow only once, that may be chance. It is blamed only after a second
            // measurement.
            if both_well && way.times < 2 {
                continue;
            }
            let end = |node: &NodeId| Place::Node { node: node.clone() };
            let or = if both_well {
                Vec::new()
            } else {
                vec![end(way.a), end(way.b)]
            };
            found.extend(way.severity.map(|severity| Blame {
                place: pair,
                or,
                severity,
                value: way.value,
                sure: both_well,
            }));
        }
        found
    }

    fn blame_node(&self, node: &'a NodeId, well: &BTreeSet<&NodeId>) -> Option<Blame> {
        let to_well: Vec<&Way<'_>> = self
            .slow_of(node)
            .filter(|(_, other)| well.contains(other))
            .map(|(way, _)| way)
            .collect();
        let severity = to_well.iter().filter_map(|way| way.severity).min()?;
        let times: u32 = self.slow_of(node).map(|(way, _)| way.times).sum();
        // Of the links to good nodes, take the one nearest to the expected value. It shows the most that this node can
        // do.
        let expected = self.expected?;
        let distance = |value: &f64| (value - expected).abs();
        let values = to_well.iter().map(|way| way.value);
        let value = values.min_by(|a, b| distance(a).total_cmp(&distance(b)))?;
        let or = if times < 2 {
            to_well.iter().map(|way| Place::pair(way.a, way.b)).collect()
        } else {
            Vec::new()
        };
        let place = match self.rail {
            Some(rail) => Place::Port {
                node: node.clone(),
                port: format!("rail {rail}").into(),
            },
            None => Place::Node { node: node.clone() },
        };
        Some(Blame {
            place,
            or,
            severity,
            value,
            sure: times >= 2,
        })
    }
}

/// Returns the random error of the median of a sample's passes, as a share of it (1.2533 σ / √n).
pub(super) fn chance(sample: &Sample) -> f64 {
    1.2533 * sample.spread / f64::from(sample.passes.max(1)).sqrt()
}

/// Returns true if a sample is too unsteady for a conclusion.
pub(super) fn unsteady(sample: &Sample, noise: &NoiseLimits) -> bool {
    sample.spread > noise.unsteady && sample.passes >= 3
}

/// Returns the spread of the values better than `center`, as a share of it. The worse values are ignored, because they
/// may be faulty and may be many.
fn upper_spread(best_first: &[f64], center: f64) -> f64 {
    let half = &best_first[..best_first.len().div_ceil(2)];
    if half.len() < 4 || center <= 0.0 {
        return 0.0;
    }
    let mut off: Vec<f64> = half.iter().map(|value| (value - center).abs() / center).collect();
    crate::stats::median(&mut off).unwrap_or(0.0) * crate::stats::MAD_TO_SIGMA
}
