//! Metrics of each rank.

use std::collections::BTreeMap;

use paceline_health::id::Rank;
use paceline_health::report::Report;
use paceline_health::verdict::{State, Subject};

use super::format::families::{Families, counters, gauges};
use super::{RankTally, Ranks};

/// Adds the families of all ranks, or only of slow ranks.
pub(super) fn families(out: &mut Families<'_>, all: &Ranks, report: &Report, has_all: bool) {
    let slow = slow(report);
    let ranks: Vec<(&Rank, &RankTally)> = all
        .iter()
        .filter(|(rank, _)| has_all || slow.contains_key(rank))
        .map(|(rank, tally)| (rank, &**tally))
        .collect();
    let ranks = || ranks.iter().copied();
    let info = ranks().filter_map(|(rank, tally)| {
        let attach = tally.attach.as_ref()?;
        let gpu = attach.gpu.as_ref().map(ToString::to_string).unwrap_or_default();
        let node = tally.node.as_ref().map(ToString::to_string).unwrap_or_default();
        Some(([rank.to_string(), attach.local_rank.to_string(), node, gpu], 1.0))
    });
    let labels = ["rank", "local_rank", "node", "gpu_uuid"];
    gauges(out, "paceline_rank_info", "Node and GPU of a rank.", labels, info);
    let up = ranks().map(|(rank, tally)| ([rank.to_string()], f64::from(u8::from(tally.up))));
    let help = "Whether the rank's process is alive.";
    gauges(out, "paceline_rank_up", help, ["rank"], up);
    let wait = ranks().map(|(rank, tally)| ([rank.to_string()], tally.wait_s));
    let (name, help) = (
        "paceline_collective_wait_seconds_total",
        "Time in collectives, transfer included.",
    );
    counters(out, name, help, ["rank"], wait);
    let last = ranks().filter(|(_, tally)| tally.last_step_unix_s > 0.0);
    let last = last.map(|(rank, tally)| ([rank.to_string()], tally.last_step_unix_s));
    let (name, help) = (
        "paceline_last_step_timestamp_seconds",
        "Time of the rank's last step, seconds since 1970.",
    );
    gauges(out, name, help, ["rank"], last);
    let slow = slow.iter().map(|(rank, ratio)| ([rank.to_string()], *ratio));
    let help = "Self-time over that of the peers, for slow ranks.";
    gauges(out, "paceline_rank_slowdown_ratio", help, ["rank"], slow);
}

/// Returns the slowdown of slow ranks relative to their peers.
fn slow(report: &Report) -> BTreeMap<Rank, f64> {
    let raised = report
        .verdicts
        .iter()
        .filter(|verdict| verdict.state == State::Raised);
    let slow = raised.filter_map(|verdict| match &verdict.subject {
        Subject::Rank { rank, .. } => Some((*rank, verdict.slowdown_ratio?)),
        _ => None,
    });
    slow.collect()
}
