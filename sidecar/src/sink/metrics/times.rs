//! Durations of steps and their parts, from the report.

use paceline_health::report::{Part, Report};
use prometheus::proto::MetricFamily;

use super::format::families::{Families, Summed, gauges, summaries};

/// Returns the job's durations, as a summary by part.
pub(super) fn summary(report: &Report) -> Option<MetricFamily> {
    let parts = report.times.parts.iter().map(|times| Summed {
        label: times.part.name(),
        quantiles: vec![
            (0.5, times.p50_s),
            (0.9, times.p90_s),
            (0.99, times.p99_s),
            (1.0, times.max_s),
        ],
        sum: times.sum_s,
        count: times.samples,
    });
    let help = "Duration of ordinary steps and of their parts, every rank, since the job began; checkpoints where written.";
    summaries("paceline_step_seconds", help, "phase", parts)
}

/// Adds the durations of each rank: its step and its self-time since the last restart.
pub(super) fn ranks(out: &mut Families<'_>, report: &Report) {
    let of_ranks = |quantile: fn(&paceline_health::report::Usual) -> f64| {
        let ranks = report.times.ranks.iter();
        ranks.flat_map(move |times| {
            [Part::Step, Part::Own].into_iter().filter_map(move |part| {
                let labels = [times.rank.to_string(), part.name().to_owned()];
                Some((labels, quantile(times.parts.get(&part)?)))
            })
        })
    };
    let labels = ["rank", "phase"];
    gauges(
        out,
        "paceline_rank_step_median_seconds",
        "Median of the rank's ordinary steps and of its self-time in them.",
        labels,
        of_ranks(|usual| usual.p50_s),
    );
    gauges(
        out,
        "paceline_rank_step_p99_seconds",
        "99th percentile of the rank's ordinary steps and of its self-time in them.",
        labels,
        of_ranks(|usual| usual.p99_s),
    );
}
