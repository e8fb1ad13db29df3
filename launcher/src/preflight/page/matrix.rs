//! Draws the paths between all nodes as a matrix. A bad node shows as a full line, and a bad path as one cell.

use std::fmt::Write as _;

use paceline_health::id::NodeId;
use paceline_health::preflight::{Metric, PreflightTable, Report};

use super::show;
use crate::html::escape;

/// Maximum number of nodes in a matrix. Larger ones are unreadable.
const MOST: usize = 64;
/// Maximum number of nodes with which each cell shows its value.
const VALUES: usize = 16;

/// Draws the bus bandwidth of each measured path. Returns an empty text if there are too few paths or too many.
pub(super) fn ways(report: &Report, table: &PreflightTable) -> String {
    let ways = show::ways(report);
    let nodes: Vec<&NodeId> = report.nodes.keys().collect();
    if !(3..=MOST).contains(&nodes.len()) || ways.is_empty() {
        return String::new();
    }
    let mut values: Vec<f64> = ways.values().copied().collect();
    values.sort_by(f64::total_cmp);
    let median = values[values.len() / 2];
    let (cell, labels) = if nodes.len() <= VALUES {
        (44.0, 90.0)
    } else {
        (12.0, 90.0)
    };
    let side = labels + cell * nodes.len() as f64 + 4.0;
    let mut text = format!(
        "<h2>Paths between nodes</h2><p class=\"faint\">All-reduce, GB/s. Red: under the limit of the median, \
         {}; grey: not \
         measured.</p><div class=\"wide\"><svg viewBox=\"0 0 {side} {side}\" style=\"max-width:{side}px\" role=\"img\" \
         aria-label=\"bus bandwidth between nodes\">",
        show::number(median)
    );
    let row = table.metric(Metric::PairBusbw);
    for (y, one) in nodes.iter().enumerate() {
        let middle = labels + cell * (y as f64 + 0.5);
        if nodes.len() <= VALUES || y % 4 == 0 {
            let short: String = one.as_str().chars().take(11).collect();
            let name = escape(&short);
            let _ = write!(
                text,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text><text transform=\"translate({:.1},{:.1}) \
                 rotate(-90)\">{name}</text>",
                labels - 6.0,
                middle + 4.0,
                middle + 4.0,
                labels - 6.0
            );
        }
        for (x, other) in nodes.iter().enumerate().filter(|(x, _)| *x != y) {
            let value = ways.get(&(*one, *other));
            let worse = value.map(|value| row.worse_by(*value, median));
            let fill = match worse {
                Some(worse) if worse > row.fail => "--bad-bg",
                Some(worse) if worse > row.warning => "--warn-bg",
                Some(_) => "--well-bg",
                None => "--line",
            };
            let (left, top) = (labels + cell * x as f64, labels + cell * y as f64);
            let told = value.map_or_else(|| "not measured".to_owned(), |value| show::number(*value));
            let _ = write!(
                text,
                "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"var({fill})\"><title>{} and {}: \
                 {told}</title></rect>",
                cell - 1.0,
                cell - 1.0,
                escape(one.as_str()),
                escape(other.as_str())
            );
            if nodes.len() <= VALUES && value.is_some() {
                let _ = write!(
                    text,
                    "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" style=\"font-size:11px\">{told}</text>",
                    left + cell / 2.0,
                    top + cell / 2.0 + 4.0
                );
            }
        }
    }
    text + "</svg></div>"
}
