//! `paceline report --compare A B`: shows if the second run was better than the first, by how much, and if that exceeds
//! the variation within the runs.

mod shift;
mod show;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;

use paceline_health::report::{Part, Report};
use paceline_health::verdict::{Subject, Verdict};
use serde::Serialize;

use self::shift::{Shift, Told};
use super::{ReportArgs, advice};
use crate::output::{self, Color, Style};

/// Version of the JSON output.
const SCHEMA_VERSION: u32 = 1;
/// A part is omitted if it is below this share of the step in both runs.
const WORTH_TELLING: f64 = 0.005;

/// The comparison of two runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Comparison {
    schema_version: u32,
    /// The result as text.
    says: String,
    told: Told,
    /// The change of step times, or `null` if one of the runs has too little data.
    step: Option<Shift>,
    /// The mean parts of a step in both runs, in seconds.
    parts: Vec<PartShift>,
    runs: [Run; 2],
    /// The findings that only the second run has. (`gone`: those that only the first run has.)
    new: Vec<Found>,
    gone: Vec<Found>,
    /// The most common version in both runs, by the name of the software. Empty if it was not reported.
    versions: BTreeMap<String, [String; 2]>,
}

/// One of the runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Run {
    place: String,
    job: String,
    ranks: u32,
    steps: u64,
    /// The median and the 99th percentile of all ranks' steps, in seconds.
    p50_s: Option<f64>,
    p99_s: Option<f64>,
    goodput_ratio: Option<f64>,
    lost_ratio: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct PartShift {
    part: Part,
    mean_s: [f64; 2],
}

/// A finding, without those details that always differ between two runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Found {
    finding: &'static str,
    cause: &'static str,
    /// The subject, without the job's name, which may differ.
    whom: String,
}

/// Compares two runs and prints the result.
pub(super) fn command(args: &ReportArgs, a: &Path, b: &Path, color: Color) -> anyhow::Result<ExitCode> {
    let read = |run: &Path| super::find(run, args.skip_broken, Style::stderr(color));
    let found = of((a, &read(a)?), (b, &read(b)?));
    if let Some(file) = &args.html {
        return super::put_page(&show::page(&found), file, || "compare.html".into());
    }
    let text = if args.json {
        serde_json::to_string(&found)? + "\n"
    } else {
        show::text(&found, Style::stdout(color))
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn of((place_a, a): (&Path, &Report), (place_b, b): (&Path, &Report)) -> Comparison {
    let step = shift::of(a, b);
    let told = Told::of(step.as_ref());
    let (found_a, found_b) = (findings(a), findings(b));
    Comparison {
        schema_version: SCHEMA_VERSION,
        says: shift::says(told, step.as_ref(), [a, b]),
        told,
        step,
        parts: parts(a, b),
        runs: [run(place_a, a), run(place_b, b)],
        new: found_b.difference(&found_a).cloned().collect(),
        gone: found_a.difference(&found_b).cloned().collect(),
        versions: versions(a, b),
    }
}

fn run(place: &Path, report: &Report) -> Run {
    let step = advice::part(report, Part::Step);
    let cost = &report.cost;
    Run {
        place: place.display().to_string(),
        job: report.job.to_string(),
        ranks: report.world_size,
        steps: report.steps,
        p50_s: step.map(|step| step.p50_s),
        p99_s: step.map(|step| step.p99_s),
        goodput_ratio: cost.goodput_ratio,
        lost_ratio: (cost.gpu_hours > 0.0).then(|| cost.lost_gpu_hours / cost.gpu_hours),
    }
}

fn parts(a: &Report, b: &Report) -> Vec<PartShift> {
    let mean = |report, part| {
        let times = advice::part(report, part)?;
        (times.samples > 0).then(|| times.sum_s / times.samples as f64)
    };
    let step = mean(a, Part::Step)
        .unwrap_or(0.0)
        .max(mean(b, Part::Step).unwrap_or(0.0));
    // Take the parts that add up to a step.
    let parts = [Part::Data, Part::Compute, Part::Wait, Part::Optimizer];
    let both = parts.into_iter().filter_map(|part| {
        let mean_s = [mean(a, part)?, mean(b, part)?];
        let is_worth = mean_s.iter().any(|mean| *mean > step * WORTH_TELLING);
        is_worth.then_some(PartShift { part, mean_s })
    });
    both.collect()
}

fn findings(report: &Report) -> BTreeSet<Found> {
    let found = |verdict: &Verdict| Found {
        finding: verdict.finding.name(),
        cause: verdict.cause.name(),
        whom: match &verdict.subject {
            Subject::Job { .. } => "the job".to_owned(),
            subject => subject.to_string(),
        },
    };
    report.verdicts.iter().map(found).collect()
}

/// Returns the versions that differ.
fn versions(a: &Report, b: &Report) -> BTreeMap<String, [String; 2]> {
    let names: BTreeSet<_> = a.versions.keys().chain(b.versions.keys()).collect();
    let of = |report: &Report, name: &str| {
        let most = report.versions.get(name).and_then(|all| all.first());
        most.map_or(String::new(), |most| most.version.to_string())
    };
    let both = names
        .into_iter()
        .map(|name| (name.to_string(), [of(a, name), of(b, name)]));
    both.filter(|(_, [a, b])| a != b).collect()
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
