//! Compares each metric of each place (a GPU, a link or a node) with its expected value.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::links::{self, chance, unsteady};
use super::reference::{Machine, References};
use super::result::{Against, Comparison};
use super::table::{MetricRow, NoiseLimits};
use super::{Fact, Judged, Metric, Noted, Place, PreflightTable, Sample, facts};
use crate::id::NodeId;
use crate::stats::{median, median_without, robust_sigma};
use crate::verdict::Severity;

/// If there are at least this many values, the spread of all of them is used instead of the spread of all but the one
/// being judged.
const MANY: usize = 32;

/// Results of earlier runs at this site for the same place under the same conditions.
#[derive(Clone, Debug, PartialEq)]
pub struct Past {
    /// The place.
    pub place: Place,
    /// The metric.
    pub metric: Metric,
    /// The conditions.
    pub conditions: Arc<str>,
    /// The values, oldest first.
    pub values: Vec<f64>,
}

/// The user's requirements, and information about the machines.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wanted {
    /// Bus bandwidth (GB/s) that all-reduce over more than one node must reach. If there is a single node, the limit
    /// applies to all-reduce within it.
    pub min_busbw: Option<f64>,
    /// GPU model and number of GPUs by node.
    pub machines: BTreeMap<NodeId, (Arc<str>, u32)>,
    /// Number of nodes that take part.
    pub nodes: u32,
    /// True if everything is simulated. Published values of real machines are ignored then.
    pub simulated: bool,
}

/// Compares samples with expected values.
#[derive(Clone, Debug)]
pub struct Judge<'a> {
    table: &'a PreflightTable,
    noise: NoiseLimits,
    past: BTreeMap<(&'a Place, Metric, &'a str), &'a [f64]>,
    wanted: &'a Wanted,
    references: References,
}

impl<'a> Judge<'a> {
    /// Creates a judge from tables, past results and requirements.
    pub fn new(table: &'a PreflightTable, past: &'a [Past], wanted: &'a Wanted) -> Judge<'a> {
        let keyed = |past: &'a Past| ((&past.place, past.metric, &*past.conditions), &*past.values);
        let references = if wanted.simulated {
            References::default()
        } else {
            References::shipped()
        };
        Judge {
            table,
            noise: table.noise,
            past: past.iter().map(keyed).collect(),
            wanted,
            references,
        }
    }

    /// Judges all measurements and facts.
    pub fn judge(&self, samples: &[Sample], facts: &[Fact]) -> Judged {
        let mut judged = Judged::default();
        facts::judge(self.table, facts, &mut judged);
        self.judge_pairs(samples, &mut judged);
        self.judge_places(samples, &mut judged);
        facts::explain(self.table, &mut judged);
        judged.settle();
        judged
    }

    /// Returns the places whose value looks bad so far, even if only by chance. They are measured again before they are
    /// reported.
    pub fn suspects(&self, samples: &[Sample]) -> Vec<Place> {
        let mut judged = Judged::default();
        let keen = Judge {
            noise: self.noise.keen(),
            ..self.clone()
        };
        keen.judge_places(samples, &mut judged);
        let mut places: Vec<Place> = judged.findings.into_iter().map(|noted| noted.place).collect();
        places.sort();
        places.dedup();
        places
    }

    fn judge_pairs(&self, samples: &[Sample], judged: &mut Judged) {
        let mut found: Vec<Noted> = Vec::new();
        for ways in links::sort(self.table, samples) {
            let row = self.table.metric(ways.metric);
            let Some(expected) = ways.expected else { continue };
            judged.comparisons += ways.ways.len();
            for blame in ways.blame() {
                let comparison = Comparison {
                    against: Against::Fleet,
                    expected,
                    severity: blame.severity,
                    source: "".into(),
                };
                let mut noted = note(row, ways.metric, blame.place, blame.value, vec![comparison]);
                noted.or = blame.or;
                noted.sure = blame.sure;
                found.push(noted);
            }
        }
        // A bad end makes its links bad, in other metrics too. A link is therefore not reported if one of its ends is
        // reported as at least as bad.
        let mut ends: BTreeMap<NodeId, Severity> = BTreeMap::new();
        for noted in found.iter().filter(|noted| noted.sure && noted.or.is_empty()) {
            if let Some(node) = noted.place.node() {
                let known = ends.entry(node.clone()).or_insert(noted.severity);
                *known = noted.severity.max(*known);
            }
        }
        let told =
            |noted: &Noted, end: &NodeId| ends.get(end).is_some_and(|severity| *severity >= noted.severity);
        found.retain(|noted| match &noted.place {
            Place::Pair { a, b } => !told(noted, a) && !told(noted, b),
            _ => true,
        });
        judged.findings.append(&mut found);
    }

    fn judge_places(&self, samples: &[Sample], judged: &mut Judged) {
        let best = self.best_of_places(samples);
        let mut groups: BTreeMap<(Metric, &str), Vec<&Sample>> = BTreeMap::new();
        for sample in &best {
            let group = groups.entry((sample.metric, &sample.conditions));
            group.or_default().push(sample);
        }
        for ((metric, _), group) in groups {
            let row = self.table.metric(metric);
            let mut sorted: Vec<f64> = group.iter().map(|sample| sample.value).collect();
            sorted.sort_by(f64::total_cmp);
            let spread = (sorted.len() >= MANY)
                .then(|| robust_sigma(&mut sorted.clone()))
                .flatten();
            for sample in &group {
                let mut compared = Vec::new();
                if !matches!(sample.place, Place::Pair { .. }) {
                    compared.extend(self.beside_fleet(row, sample, &sorted, spread));
                }
                compared.extend(self.beside_past(row, sample));
                compared.extend(self.beside_reference(row, sample));
                compared.extend(self.beside_wish(sample));
                judged.comparisons += compared.len();
                let mut bad: Vec<Comparison> = compared.into_iter().flatten().collect();
                if unsteady(sample, &self.noise) {
                    judged.unsteady.push((sample.place.clone(), metric));
                    // Only the user's floor applies to busy machines.
                    bad.retain(|comparison| comparison.against == Against::Floor);
                }
                self.tell_place(row, sample, bad, judged);
            }
        }
    }

    fn tell_place(&self, row: &MetricRow, sample: &Sample, mut bad: Vec<Comparison>, judged: &mut Judged) {
        bad.sort_by_key(|comparison| std::cmp::Reverse(comparison.severity));
        let mut noted = note(row, sample.metric, sample.place.clone(), sample.value, bad);
        if let Place::Pair { a, b } = &sample.place {
            // A slow end makes all its links slow. A link is therefore not reported if one of its ends is.
            let ends = [a, b];
            let told = |known: &Noted| {
                known.metric() == Some(sample.metric)
                    && (known.place == sample.place
                        || known.place.node().is_some_and(|node| ends.contains(&node)))
            };
            if let Some(same) = judged.findings.iter_mut().find(|known| told(known)) {
                if same.place == sample.place {
                    same.comparisons.append(&mut noted.comparisons);
                }
                return;
            }
            noted.or = ends.map(|node| Place::Node { node: node.clone() }).into();
        }
        if !noted.comparisons.is_empty() {
            judged.findings.push(noted);
        }
    }

    /// Returns the best sample of each place, because a bad value that is good when repeated was noise. The result has
    /// the steadiness of the steadiest sample, because a place that is bad twice need not be steady both times.
    fn best_of_places(&self, samples: &[Sample]) -> Vec<Sample> {
        let mut best: BTreeMap<(&Place, Metric, &str, Option<u32>), Sample> = BTreeMap::new();
        for sample in samples {
            let row = self.table.metric(sample.metric);
            let key = (&sample.place, sample.metric, &*sample.conditions, sample.rail);
            let known = best.entry(key).or_insert_with(|| sample.clone());
            // A single pass has no spread, but that does not make it steady.
            let is_steadier = sample.passes >= 3 && (known.passes < 3 || chance(sample) < chance(known));
            let steadiest = if is_steadier { sample } else { &*known };
            let (spread, passes) = (steadiest.spread, steadiest.passes);
            if row.best(known.value, sample.value) != known.value {
                *known = sample.clone();
            }
            (known.spread, known.passes) = (spread, passes);
        }
        best.into_values().collect()
    }

    /// Compares a sample with the others of the fleet. If there are many samples, `spread` is the spread of all of
    /// them, because a single one hardly affects it.
    fn beside_fleet(
        &self,
        row: &MetricRow,
        sample: &Sample,
        sorted: &[f64],
        spread: Option<f64>,
    ) -> Option<Option<Comparison>> {
        let own = sorted.partition_point(|value| value.total_cmp(&sample.value).is_lt());
        let expected = median_without(sorted, own)?;
        let of_others = || {
            let mut others = sorted.to_vec();
            others.remove(own);
            robust_sigma(&mut others)
        };
        let fleet = spread.or_else(of_others).unwrap_or(0.0) / expected.abs().max(f64::MIN_POSITIVE);
        let sigma = chance(sample).hypot(fleet);
        Some(self.compared(row, sample, expected, sigma, Against::Fleet, ""))
    }

    fn beside_past(&self, row: &MetricRow, sample: &Sample) -> Option<Option<Comparison>> {
        let values = self
            .past
            .get(&(&sample.place, sample.metric, &*sample.conditions))
            .filter(|values| values.len() >= self.table.noise.history_min)?;
        let expected = median(&mut values.to_vec())?;
        let spread =
            robust_sigma(&mut values.to_vec()).unwrap_or(0.0) / expected.abs().max(f64::MIN_POSITIVE);
        let sigma = chance(sample).hypot(spread);
        Some(self.compared(row, sample, expected, sigma, Against::History, ""))
    }

    fn beside_reference(&self, row: &MetricRow, sample: &Sample) -> Option<Option<Comparison>> {
        let node = sample.place.node();
        let (model, gpus) = match node {
            Some(node) => self.wanted.machines.get(node)?,
            None => self.wanted.machines.values().next()?,
        };
        let nodes = if node.is_some() { 1 } else { self.wanted.nodes };
        let machine = Machine {
            model,
            gpus: *gpus,
            nodes,
        };
        let published = self.references.of(machine, sample)?;
        if let Some(limit) = published.fail.filter(|limit| sample.value < *limit) {
            return Some(Some(Comparison {
                against: Against::Reference,
                expected: limit,
                severity: Severity::Critical,
                source: published.source.into(),
            }));
        }
        let expected = published.expect?;
        Some(self.compared(
            row,
            sample,
            expected,
            chance(sample),
            Against::Reference,
            published.source,
        ))
    }

    fn beside_wish(&self, sample: &Sample) -> Option<Option<Comparison>> {
        let concerns = match sample.metric {
            // The floor does not apply to a single rail, because it carries only its share.
            Metric::PairBusbw | Metric::AllBusbw => sample.rail.is_none(),
            Metric::LocalBusbw | Metric::LocalBusbwHost => self.wanted.nodes <= 1,
            _ => false,
        };
        let wanted = self.wanted.min_busbw.filter(|_| concerns)?;
        Some((sample.value < wanted).then(|| Comparison {
            against: Against::Floor,
            expected: wanted,
            severity: Severity::Critical,
            source: "--min-busbw".into(),
        }))
    }

    fn compared(
        &self,
        row: &MetricRow,
        sample: &Sample,
        expected: f64,
        sigma: f64,
        against: Against,
        source: &str,
    ) -> Option<Comparison> {
        let severity = row.severity(sample.value, expected, sigma, &self.noise)?;
        Some(Comparison {
            against,
            expected,
            severity,
            source: source.into(),
        })
    }
}

fn note(row: &MetricRow, metric: Metric, place: Place, value: f64, comparisons: Vec<Comparison>) -> Noted {
    let worst = comparisons.iter().map(|comparison| comparison.severity).max();
    Noted {
        place,
        or: Vec::new(),
        what: metric.name().into(),
        severity: worst.unwrap_or(Severity::Info),
        value: Some(value),
        unit: row.unit.clone(),
        comparisons,
        sure: true,
        says: row.says.clone(),
        cause: "".into(),
        advice: row.advice.clone(),
    }
}
