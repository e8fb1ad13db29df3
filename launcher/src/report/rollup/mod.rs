//! `paceline report --since 7d [DIR]`: summarizes the losses of all runs below a directory, with their causes and
//! nodes.

mod find;
mod show;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use paceline_health::Provenance;
use paceline_health::report::Report;
use paceline_health::text::humanize;
use paceline_health::verdict::{Finding, Severity, Subject, Verdict};
use serde::Serialize;

use self::find::Seen;
use super::ReportArgs;
use crate::output::progress::Progress;
use crate::output::{self, Color, Style};

/// Version of the JSON output.
const SCHEMA_VERSION: u32 = 1;

/// The summary of many runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Rollup {
    schema_version: u32,
    /// The directory. (`since_s` is the time span until now, in seconds.)
    below: String,
    since_s: u64,
    total: Total,
    /// The losses by cause: a cause, a finding, `checkpoint`, `warm-up` or `restart`.
    by_cause: BTreeMap<String, Share>,
    /// The findings by their node. Findings without a single node are not included.
    by_node: BTreeMap<String, Node>,
    /// The runs in the order of their ends.
    runs: Vec<Run>,
    /// The reports that could not be read, with the reason.
    damaged: Vec<String>,
    /// Number of files that have a report's name but come from other programs.
    foreign: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Total {
    runs: u64,
    /// Number of runs still in progress. Their losses so far are included.
    running: u64,
    /// Number of runs with GPUs.
    with_gpus: u64,
    /// Number of runs that are at least partly based on simulated, replayed or injected data.
    not_live: u64,
    /// GPU time in hours. For runs without GPUs, rank time.
    gpu_hours: f64,
    lost_gpu_hours: f64,
    /// The lost cost in the currency of the prices, or `null` if no run had a price.
    lost_cost: Option<f64>,
    /// Number of runs that had a price.
    priced: u64,
    /// Share of all GPU time that made progress at full speed, over the runs that report it.
    goodput_ratio: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Share {
    lost_gpu_hours: f64,
    lost_cost: Option<f64>,
    runs: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Node {
    /// Number of findings about this node, its ranks, GPUs or ports. Overlapping findings all count.
    findings: u64,
    critical: u64,
    runs: u64,
    lost_gpu_hours: f64,
    lost_cost: Option<f64>,
    /// Number of findings by name.
    kinds: BTreeMap<&'static str, u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Run {
    place: PathBuf,
    job: String,
    /// True if the run is still in progress. The other values are then those so far.
    running: bool,
    ended_unix_ms: u64,
    ranks: u32,
    duration_s: f64,
    gpu_hours: f64,
    lost_gpu_hours: f64,
    goodput_ratio: Option<f64>,
    /// The most important finding and its subject.
    worst: Option<String>,
    end: Option<&'static str>,
}

/// Reads the reports and prints the summary.
pub(super) fn command(args: &ReportArgs, since: Duration, color: Color) -> anyhow::Result<ExitCode> {
    let below = args.run.as_deref().unwrap_or(Path::new("."));
    let now_ms = paceline_sidecar::host::unix_ms();
    let found = find::reports(below)?;
    let mut rollup = Rollup {
        schema_version: SCHEMA_VERSION,
        below: shown(below).display().to_string(),
        since_s: since.as_secs(),
        ..Rollup::default()
    };
    let mut progress = Progress::new(Style::stderr(color), "reports");
    let oldest = now_ms.saturating_sub(since.as_millis() as u64);
    for (number, path) in (1..).zip(&found) {
        match find::read(path) {
            Seen::Report {
                report,
                until_unix_ms,
                running,
            } if until_unix_ms >= oldest => {
                rollup.add(path, &report, until_unix_ms, running);
            }
            Seen::Report { .. } => {}
            Seen::Foreign => rollup.foreign += 1,
            Seen::Damaged(why) => rollup.damaged.push(why),
        }
        progress.at(number, found.len() as u64);
    }
    drop(progress);
    rollup.settle();
    for why in &rollup.damaged {
        output::warning(Style::stderr(color), format_args!("skipped: {why}"));
    }
    if let Some(file) = &args.html {
        return super::put_page(&show::page(&rollup), file, || below.join("rollup.html"));
    }
    let text = if args.json {
        serde_json::to_string(&rollup)? + "\n"
    } else {
        show::text(&rollup, Style::stdout(color))
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Parses a time span such as `7d`, `12h`, `90m`, `2w` or `30s`.
pub(crate) fn span(text: &str) -> Result<Duration, String> {
    let wanted = || format!("`{text}`: a number and s, m, h, d or w, such as 7d");
    let unit = text.chars().next_back().ok_or_else(wanted)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        'w' => 604_800,
        _ => return Err(wanted()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| wanted())?;
    let seconds = number.checked_mul(seconds).filter(|seconds| *seconds > 0);
    seconds.map(Duration::from_secs).ok_or_else(wanted)
}

/// Returns the directory with its name, because `.` would not be meaningful later.
fn shown(below: &Path) -> PathBuf {
    let named = below.file_name().is_some();
    let whole = (!named).then(|| below.canonicalize().ok()).flatten();
    whole.unwrap_or_else(|| below.to_owned())
}

impl Rollup {
    fn add(&mut self, path: &Path, report: &Report, until_unix_ms: u64, running: bool) {
        let cost = &report.cost;
        self.total.runs += 1;
        self.total.with_gpus += u64::from(humanize::whose(report) == "GPU");
        self.total.running += u64::from(running);
        let is_live = report
            .verdicts
            .iter()
            .all(|verdict| verdict.provenance == Provenance::Live);
        self.total.not_live += u64::from(!is_live);
        self.total.gpu_hours += known(cost.gpu_hours);
        self.total.lost_gpu_hours += known(cost.lost_gpu_hours);
        add(&mut self.total.lost_cost, cost.lost_cost);
        self.total.priced += u64::from(cost.lost_cost.is_some());
        if let Some(goodput) = cost.goodput_ratio {
            // Weight the ratio by GPU time. The sum is divided by the total at the end.
            *self.total.goodput_ratio.get_or_insert(0.0) += known(goodput) * known(cost.gpu_hours);
        }
        for (cause, lost) in cost.by_cause.iter().filter(|(_, lost)| **lost > 0.0) {
            let share = self.by_cause.entry(cause.to_string()).or_default();
            share.lost_gpu_hours += known(*lost);
            add(
                &mut share.lost_cost,
                cost.gpu_hour_price.map(|price| price * lost),
            );
            share.runs += 1;
        }
        self.blame(report);
        let worst = super::by_weight(report)
            .into_iter()
            .find(|verdict| is_blame(verdict));
        self.runs.push(Run {
            place: path.parent().unwrap_or(path).to_owned(),
            job: report.job.to_string(),
            running,
            ended_unix_ms: until_unix_ms,
            ranks: report.world_size,
            duration_s: report.duration_s,
            gpu_hours: known(cost.gpu_hours),
            lost_gpu_hours: known(cost.lost_gpu_hours),
            goodput_ratio: cost.goodput_ratio,
            worst: worst.map(|verdict| format!("{} of {}", verdict.finding, verdict.subject_text())),
            end: report.end.as_ref().map(|end| end.reason.name()),
        });
    }

    /// Returns the unit that fits the largest amount, so that all amounts are easy to compare.
    fn unit(&self) -> humanize::GpuTime {
        humanize::GpuTime::of(self.total.gpu_hours.max(self.total.lost_gpu_hours), self.whose())
    }

    fn whose(&self) -> &'static str {
        if self.total.with_gpus > 0 { "GPU" } else { "rank" }
    }

    /// Counts findings by their nodes.
    fn blame(&mut self, report: &Report) {
        let mut here: BTreeMap<&str, ()> = BTreeMap::new();
        for verdict in report.verdicts.iter().filter(|verdict| is_blame(verdict)) {
            let Some(name) = node(verdict) else { continue };
            let node = self.by_node.entry(name.to_owned()).or_default();
            node.findings += 1;
            node.critical += u64::from(verdict.severity == Severity::Critical);
            node.lost_gpu_hours += known(verdict.lost_gpu_hours);
            add(&mut node.lost_cost, verdict.lost_cost);
            *node.kinds.entry(verdict.finding.name()).or_default() += 1;
            if here.insert(name, ()).is_none() {
                node.runs += 1;
            }
        }
    }

    /// Sorts the runs and finishes the means, after all reports were added.
    fn settle(&mut self) {
        self.runs
            .sort_by(|a, b| a.ended_unix_ms.cmp(&b.ended_unix_ms).then(a.place.cmp(&b.place)));
        let weights: f64 = self
            .runs
            .iter()
            .filter(|run| run.goodput_ratio.is_some())
            .map(|run| run.gpu_hours)
            .sum();
        self.total.goodput_ratio = self
            .total
            .goodput_ratio
            .filter(|_| weights > 0.0)
            .map(|sum| sum / weights);
    }
}

/// Returns true if the finding counts against a node. Informational findings do not, except for a hang that had a cost.
fn is_blame(verdict: &Verdict) -> bool {
    let stood = verdict.finding == Finding::RankSilent && verdict.lost_gpu_hours > 0.0;
    (verdict.severity != Severity::Info || stood) && verdict.finding != Finding::XidRecorded
}

/// Returns the node of a finding. For a link with two ends, neither node can be identified.
fn node(verdict: &Verdict) -> Option<&str> {
    match &verdict.subject {
        Subject::Rank { node, .. } | Subject::Node { node } | Subject::Gpu { node, .. } => {
            Some(node.as_str())
        }
        Subject::Link { node, peer: None } => Some(node.as_str()),
        Subject::Link { .. } | Subject::Job { .. } | Subject::Rack { .. } => None,
    }
}

/// Replaces a value that is not finite, because a file may contain any value and sums must stay finite.
fn known(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}

fn add(sum: &mut Option<f64>, more: Option<f64>) {
    if let Some(more) = more {
        *sum.get_or_insert(0.0) += known(more);
    }
}

#[cfg(test)]
#[path = "rollup_tests.rs"]
mod tests;
