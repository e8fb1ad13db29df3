//! Reads the results of the site's earlier preflights while the current one runs, and adds its results to them.
//!
//! The folder is on a shared file system that may hang, so no job waits long for it.

use std::io;
use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use paceline_health::preflight::{Metric, Outcome, Past as Known, Report, Sample};
use paceline_nccl_bench::preflight::{History, Passports, Stamp};

use crate::output::{self, Style};

/// Additional time for reading after all measurements are done.
const READ: Duration = Duration::from_secs(1);
/// Time for writing the results.
const WRITE: Duration = Duration::from_secs(5);

/// Time for reading if only the history was requested.
const ASKED: Duration = Duration::from_secs(30);

/// Reads the contents of the folder.
pub(super) fn read(folder: &Path) -> io::Result<History> {
    in_time(&reading(folder), ASKED)
}

fn reading(folder: &Path) -> Receiver<io::Result<History>> {
    let passports = Passports::at(folder);
    beside(move || passports.read())
}

/// The reading in progress, if the site keeps passports (results of earlier preflights).
pub(super) struct Past {
    reading: Option<Receiver<io::Result<History>>>,
    style: Style,
}

impl Past {
    /// Starts to read the folder.
    pub(super) fn of(folder: Option<&Path>, style: Style) -> Past {
        let reading = folder.map(reading);
        Past { reading, style }
    }

    /// Returns the known history of these samples.
    pub(super) fn recall(&self, samples: &[Sample]) -> io::Result<Vec<Known>> {
        let Some(reading) = &self.reading else {
            return Ok(Vec::new());
        };
        let history = in_time(reading, READ)?;
        for left_out in history.left_out() {
            output::warning(self.style, left_out);
        }
        Ok(history.past(samples))
    }
}

/// Adds the results to the folder. A failure does not prevent the job's start.
pub(super) fn add(folder: Option<&Path>, node: &str, report: &Report, style: Style) {
    let Some(folder) = folder else { return };
    let (passports, node, stamps) = (Passports::at(folder), node.to_owned(), stamps(report));
    let writing = beside(move || passports.add(&node, &stamps));
    if let Err(problem) = in_time(&writing, WRITE) {
        let problem = format_args!("the results could not be added to the passports: {problem}");
        output::warning(style, problem);
    }
}

/// Does the work on a thread, so that the caller can stop waiting.
fn beside<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Receiver<io::Result<T>> {
    let (sender, receiver) = mpsc::channel();
    let work = move || {
        // Ignore the error, because the caller may have stopped waiting.
        let _ = sender.send(work());
    };
    // Ignore the error: if the thread does not start, the receiver gets nothing.
    let _ = thread::Builder::new().name("passports".to_owned()).spawn(work);
    receiver
}

fn in_time<T>(work: &Receiver<io::Result<T>>, limit: Duration) -> io::Result<T> {
    let late = |_| {
        let seconds = limit.as_secs();
        io::Error::new(
            io::ErrorKind::TimedOut,
            format!("the file system did not respond within {seconds} s"),
        )
    };
    work.recv_timeout(limit).map_err(late)?
}

fn stamps(report: &Report) -> Vec<Stamp> {
    let at = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |span| span.as_secs());
    report
        .samples
        .iter()
        // Leave out a path without any throughput, because it is a finding and not a measurement of a link.
        .filter(|sample| sample.value > 0.0 || sample.metric == Metric::PairLoss)
        .map(|sample| Stamp {
            at,
            job: report.job.0.clone(),
            well: report.outcome == Outcome::Ok || !accused(report, sample),
            place: sample.place.clone(),
            metric: sample.metric,
            conditions: sample.conditions.clone(),
            value: sample.value,
        })
        .collect()
}

/// Returns true if a finding concerns the sample's subject. For a path, this includes findings about its loss and about
/// its two ends, because these slow it down too.
fn accused(report: &Report, sample: &Sample) -> bool {
    let ways = [Metric::PairBusbw, Metric::PairLatency, Metric::PairLoss];
    let is_alike =
        |metric: Metric| metric == sample.metric || ways.contains(&metric) && ways.contains(&sample.metric);
    report
        .findings
        .iter()
        .any(|noted| noted.metric().is_some_and(is_alike) && noted.concerns(&sample.place))
}
