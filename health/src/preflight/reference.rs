//! The published values of `policy/preflight-reference.tsv`.

use super::{Metric, Sample};
use crate::fault::table::{TableError, rows};

const TEXT: &str = include_str!("../../policy/preflight-reference.tsv");
const FILE: &str = "policy/preflight-reference.tsv";

/// Expected values of a machine type.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Published {
    words: Vec<&'static str>,
    gpus: u32,
    nodes: u32,
    metric: Metric,
    bytes: u64,
    /// The published value.
    pub expect: Option<f64>,
    /// The value below which the publisher rejects machines.
    pub fail: Option<f64>,
    /// The publication.
    pub source: &'static str,
}

/// The measured machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Machine<'a> {
    /// The name of the GPU model.
    pub model: &'a str,
    /// Number of GPUs in each node.
    pub gpus: u32,
    /// Number of nodes that took part.
    pub nodes: u32,
}

/// The table of published values.
#[derive(Clone, Debug, Default)]
pub(super) struct References(Vec<Published>);

impl References {
    /// Returns the table as shipped.
    pub fn shipped() -> References {
        // The text is compiled in and covered by a test, so parsing it cannot fail.
        References(parse(TEXT).expect("policy/preflight-reference.tsv is tested"))
    }

    /// Returns the row that matches best. If several match, that is the row for the largest messages that are not
    /// larger than the sample's.
    pub fn of(&self, machine: Machine<'_>, sample: &Sample) -> Option<&Published> {
        let fits = |row: &&Published| {
            row.metric == sample.metric
                && row.gpus == machine.gpus
                && row.nodes == machine.nodes
                && row.bytes <= sample.bytes
                && row.words.iter().all(|word| machine.model.contains(word))
        };
        let specific = |row: &&Published| (row.fail.is_some(), row.words.len(), row.bytes);
        self.0.iter().filter(fits).max_by_key(specific)
    }
}

fn parse(text: &'static str) -> Result<Vec<Published>, TableError> {
    let number = |text: &str| text.parse::<f64>().ok().filter(|value| *value > 0.0);
    let optional = |text: &str| {
        if text.is_empty() {
            Some(None)
        } else {
            number(text).map(Some)
        }
    };
    rows(FILE, text)?
        .iter()
        .map(|row| {
            Ok(Published {
                words: row.text("model")?.split_whitespace().collect(),
                gpus: row.cell("gpus", |text| text.parse().ok())?,
                nodes: row.cell("nodes", |text| text.parse().ok())?,
                metric: row.name("metric")?,
                bytes: row.cell("bytes", |text| text.parse().ok())?,
                expect: row.cell("expect", optional)?,
                fail: row.cell("fail", optional)?,
                source: row
                    .cell("source", |_| Some(()))
                    .and_then(|()| row.text("source"))?,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preflight::Place;

    #[test]
    fn the_table_is_whole_and_found() {
        let table = References::shipped();
        assert!(table.0.iter().all(|row| row.source.starts_with("https://")));
        assert!(
            table
                .0
                .iter()
                .all(|row| row.expect.is_some() || row.fail.is_some())
        );
        let sample = |metric, bytes| Sample {
            place: Place::Job,
            metric,
            conditions: "".into(),
            rail: None,
            round: 0,
            value: 1.0,
            spread: 0.0,
            passes: 1,
            bytes,
        };
        let h100 = Machine {
            model: "NVIDIA H100 80GB HBM3",
            gpus: 8,
            nodes: 1,
        };
        let found =
            |machine, metric, bytes| table.of(machine, &sample(metric, bytes)).and_then(|row| row.fail);
        assert_eq!(found(h100, Metric::LocalBusbw, 16 << 30), Some(460.0));
        assert_eq!(found(h100, Metric::LocalBusbw, 1 << 20), None);
        assert_eq!(found(h100, Metric::HostToDevice, 1 << 20), Some(48.0));
        let four = Machine { gpus: 4, ..h100 };
        assert_eq!(found(four, Metric::LocalBusbw, 16 << 30), None);
    }
}
