//! What earlier preflights of the site measured, read while this one measures, and what this one adds.
//!
//! The folder is on a file system that all share, and that may hang: no job's start waits long for it.

use std::io;
use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use paceline_health::preflight::{Metric, Outcome, Past as Known, Report, Sample};
use paceline_nccl_bench::preflight::{History, Passports, Stamp};

use crate::output::{self, Style};

/// How long is waited for what could not be read while everything was measured.
const READ: Duration = Duration::from_secs(1);
/// How long is waited for what was measured to be written.
const WRITE: Duration = Duration::from_secs(5);

/// How long somebody who asks for it alone waits.
const ASKED: Duration = Duration::from_secs(30);

/// What is in the folder.
pub(super) fn read(folder: &Path) -> io::Result<History> {
    in_time(&reading(folder), ASKED)
}

fn reading(folder: &Path) -> Receiver<io::Result<History>> {
    let passports = Passports::at(folder);
    beside(move || passports.read())
}

/// What is being read, if the site keeps passports.
pub(super) struct Past {
    reading: Option<Receiver<io::Result<History>>>,
    style: Style,
}

impl Past {
    /// Begins to read.
    pub(super) fn of(folder: Option<&Path>, style: Style) -> Past {
        let reading = folder.map(reading);
        Past { reading, style }
    }

    /// What is known of what was measured.
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

/// Adds what was measured. That it cannot be is no reason not to start.
pub(super) fn add(folder: Option<&Path>, node: &str, report: &Report, style: Style) {
    let Some(folder) = folder else { return };
    let (passports, node, stamps) = (Passports::at(folder), node.to_owned(), stamps(report));
    let writing = beside(move || passports.add(&node, &stamps));
    if let Err(problem) = in_time(&writing, WRITE) {
        let problem = format_args!("the results could not be added to the passports: {problem}");
        output::warning(style, problem);
    }
}

/// Does it on a thread that nobody has to wait for.
fn beside<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Receiver<io::Result<T>> {
    let (sender, receiver) = mpsc::channel();
    let work = move || {
        // Nobody may be waiting any more.
        let _ = sender.send(work());
    };
    // Without a thread nothing will come.
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
        // That nothing came through is told, and is no measurement of a link.
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

/// Whether something was found against what a sample is of. A way is also slow by what it loses, or by an end that does.
fn accused(report: &Report, sample: &Sample) -> bool {
    let ways = [Metric::PairBusbw, Metric::PairLatency, Metric::PairLoss];
    let is_alike =
        |metric: Metric| metric == sample.metric || ways.contains(&metric) && ways.contains(&sample.metric);
    report
        .findings
        .iter()
        .any(|noted| noted.metric().is_some_and(is_alike) && noted.concerns(&sample.place))
}
