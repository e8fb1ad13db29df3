//! Finds reports below a directory.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::Context as _;
use paceline_health::report::Report;
use paceline_sidecar::aggregator::journal::owner;

use crate::report;

/// Maximum depth. Run directories are in the directory itself, or in subdirectories by user, project or month.
const DEEP: usize = 4;
/// Maximum number of entries. A directory with more entries contains other things than runs.
const ENTRIES: usize = 1_000_000;
/// Maximum size of a report in bytes.
const MOST_BYTES: u64 = 256 << 20;

/// A larger number of seconds, GPU-hours or money is beyond any real run, such as ten million GPUs for ten years.
const MOST_AMOUNT: f64 = 1e12;

/// What a file turned out to be.
pub(super) enum Seen {
    /// A report, with the time that it covers, in milliseconds since 1970.
    Report {
        report: Box<Report>,
        until_unix_ms: u64,
        /// True if the run is still in progress.
        running: bool,
    },
    /// A file with the name of a report, but from another program.
    Foreign,
    /// A damaged report: its path and the error.
    Damaged(String),
}

/// Returns the paths of all reports, sorted. Symbolic links are not followed, because their targets are counted in
/// their own place.
pub(super) fn reports(below: &Path) -> anyhow::Result<Vec<PathBuf>> {
    fs::read_dir(below).with_context(|| below.display().to_string())?;
    let mut found = Vec::new();
    let mut left = ENTRIES;
    let mut waiting = vec![(below.to_owned(), 0)];
    while let Some((dir, depth)) = waiting.pop() {
        // Skip directories that cannot be read, because they belong to other users.
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        for entry in entries.flatten() {
            left = left.saturating_sub(1);
            if left == 0 {
                anyhow::bail!(
                    "{}: more than {ENTRIES} files; name a directory of runs",
                    below.display()
                );
            }
            let name = entry.file_name();
            match entry.file_type() {
                Ok(kind) if kind.is_file() && name == report::FILE => found.push(entry.path()),
                Ok(kind) if kind.is_dir() && depth < DEEP && !name.as_encoded_bytes().starts_with(b".") => {
                    waiting.push((entry.path(), depth + 1));
                }
                _ => {}
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Reads a report. The run's end is its start plus its duration or, if the start is not known, the file's modification
/// time.
pub(super) fn read(path: &Path) -> Seen {
    let shown = path.display();
    let (text, written_ms) = match text(path) {
        Ok(read) => read,
        Err(problem) => return Seen::Damaged(format!("{shown}: {problem}")),
    };
    match report::parse(&text) {
        Ok(report) if impossible(&report).is_some() => {
            let what = impossible(&report).unwrap_or_default();
            Seen::Damaged(format!("{shown}: {what}: impossible value"))
        }
        Ok(report) => {
            let lasted_ms = |began: u64| began.saturating_add((report.duration_s.max(0.0) * 1e3) as u64);
            let dir = path.parent().unwrap_or(Path::new("."));
            Seen::Report {
                until_unix_ms: report.began_unix_ms.map_or(written_ms, lasted_ms),
                running: report.end.is_none() && owner::is_held(dir),
                report: Box::new(report),
            }
        }
        Err(_) if serde_json::from_str::<serde_json::Value>(&text).is_ok() && report::is_foreign(path) => {
            Seen::Foreign
        }
        Err(problem) => Seen::Damaged(format!("{shown}{problem}")),
    }
}

/// Describes the first impossible number in a report, if there is one. One such report would ruin all sums.
fn impossible(report: &Report) -> Option<String> {
    let cost = &report.cost;
    let causes = cost.by_cause.values().map(|lost| ("cost.by_cause", *lost));
    let verdicts = report
        .verdicts
        .iter()
        .map(|verdict| ("verdicts.lost_gpu_hours", verdict.lost_gpu_hours));
    let money = [
        ("cost.lost_cost", cost.lost_cost),
        ("cost.gpu_hour_price", cost.gpu_hour_price),
    ];
    let money = money.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let amounts = [
        ("duration_s", report.duration_s),
        ("cost.gpu_hours", cost.gpu_hours),
        ("cost.lost_gpu_hours", cost.lost_gpu_hours),
    ];
    let amounts = amounts.into_iter().chain(causes).chain(verdicts).chain(money);
    let is_possible = |value: f64| (0.0..=MOST_AMOUNT).contains(&value);
    let mut wrong = amounts.filter(|(_, value)| !is_possible(*value));
    if let Some((name, value)) = wrong.next() {
        return Some(format!("{name} is {value}"));
    }
    if let Some(ratio) = cost.goodput_ratio.filter(|ratio| !(0.0..=1.0).contains(ratio)) {
        return Some(format!("cost.goodput_ratio is {ratio}"));
    }
    // Allow a small excess, because each number is rounded to nine decimals.
    let is_more = cost.lost_gpu_hours > cost.gpu_hours * 1.001 + 1e-6;
    is_more.then(|| {
        format!(
            "cost.lost_gpu_hours is {}, of {}",
            cost.lost_gpu_hours, cost.gpu_hours
        )
    })
}

fn text(path: &Path) -> io::Result<(String, u64)> {
    let file = fs::File::open(path)?;
    let modified = file.metadata()?.modified()?;
    let written_ms = modified
        .duration_since(UNIX_EPOCH)
        .map_or(0, |age| age.as_millis() as u64);
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(io::Error::other("too large for a report"));
    }
    let text = String::from_utf8(bytes).map_err(|_| io::Error::other("not UTF-8"))?;
    Ok((text, written_ms))
}
