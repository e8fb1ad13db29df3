//! `paceline preflight history NODE`: prints what earlier preflights measured of a node.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use paceline_health::preflight::{Metric, Place};
use paceline_nccl_bench::preflight::Stamp;
use serde::Serialize;

use super::args::HistoryArgs;
use super::past;
use crate::output::{self, Color, Style, warning};

/// Exit code if there are no results.
const UNKNOWN: u8 = 3;

#[derive(Serialize)]
struct Known<'a> {
    schema_version: u32,
    node: &'a str,
    stamps: Vec<&'a Stamp>,
    broken: usize,
}

/// Prints the node's history.
pub(super) fn command(args: &HistoryArgs, color: Color) -> anyhow::Result<ExitCode> {
    let read = past::read(&args.passports);
    let history =
        read.with_context(|| format!("the passports in {} cannot be read", args.passports.display()))?;
    let of_node = |stamp: &&Stamp| match &stamp.place {
        Place::Pair { a, b } => a.as_str() == args.node || b.as_str() == args.node,
        place => place.node().is_some_and(|node| node.as_str() == args.node),
    };
    let stamps: Vec<&Stamp> = history.stamps.iter().filter(of_node).collect();
    let is_known = !stamps.is_empty();
    for left_out in history.left_out() {
        warning(Style::stderr(color), left_out);
    }
    if args.json {
        let known = Known {
            schema_version: 1,
            node: &args.node,
            stamps,
            broken: history.broken,
        };
        output::print(&(serde_json::to_string(&known)? + "\n"))?;
    } else {
        output::show(&render(&args.node, &stamps))?;
    }
    Ok(if is_known {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(UNKNOWN)
    })
}

fn render(node: &str, stamps: &[&Stamp]) -> String {
    if stamps.is_empty() {
        return format!("no record of node {node}\n");
    }
    type Key<'a> = (&'a Place, Metric, &'a str);
    let mut places: BTreeMap<Key<'_>, Vec<&Stamp>> = BTreeMap::new();
    for stamp in stamps {
        places
            .entry((&stamp.place, stamp.metric, &stamp.conditions))
            .or_default()
            .push(stamp);
    }
    let mut text = String::new();
    for ((place, metric, conditions), stamps) in places {
        let mut values: Vec<f64> = stamps.iter().map(|stamp| stamp.value).collect();
        let last = values.last().copied().unwrap_or(0.0);
        let bad = stamps.iter().filter(|stamp| !stamp.well).count();
        let median = paceline_health::stats::median(&mut values).unwrap_or(0.0);
        let _ = write!(
            text,
            "{place}, {metric} ({conditions}): {} times, median {median:.4}, last {last:.4}",
            stamps.len()
        );
        if bad > 0 {
            let _ = write!(text, ", {bad} of them bad");
        }
        text.push('\n');
    }
    text
}
