//! Provides the report after the end of a run, however the sidecar ended.
//!
//! A sidecar that ended normally has written the report. Otherwise the launcher folds it from the journal here, and its
//! coverage shows the missing data. Without a journal, the report states that nothing was observed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use paceline_health::event::{Event, Job};
use paceline_health::frame::SCHEMA_VERSION;
use paceline_health::id::{JobId, NodeId};
use paceline_health::report::{Ending, Gap, NodeExit, Reason, Report};
use paceline_health::{Detector, Frame, Provenance, Time};
use paceline_sidecar::aggregator::core::OWN_AGENT;
use paceline_sidecar::remedy::books;
use paceline_sidecar::sink::metrics::ends;
use rustix::fs::{FlockOperation, flock};

use super::directories::place::Place;
use super::process::child::StartError;
use super::sidecar::Life;
use super::supervise::Ended;
use super::{Outcome, Plan};
use crate::journal::{self, Journal};
use crate::output::{self, Paint};
use crate::report::{self, block, page};

/// A gap at the end that is longer than this was not monitored, because the aggregator writes a heartbeat every second.
const UNHEARD_S: f64 = 2.0;
/// Tolerated difference between the file system's clock and ours.
const CLOCK_SLACK: Duration = Duration::from_secs(2);

/// What is finally known about the job, and where it is stored.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    /// The report.
    pub(crate) report: Report,
    /// The report's file, if it could be written.
    pub(crate) place: Option<PathBuf>,
    /// The report's HTML page, if it was written.
    pub(crate) page: Option<PathBuf>,
    /// The address of the aggregator that has all data, if it runs on another host or for another command.
    pub(crate) elsewhere: Option<String>,
    /// True if other tasks of this node are still running. They will print the report.
    pub(crate) is_left_to_others: bool,
}

/// Creates the report of a command that could not be started, so that nothing else is known.
pub(crate) fn never_began(plan: &Plan, run_dir: Option<&Path>, failed: &StartError) -> Known {
    let ended = Ended {
        code: failed.code(),
        at: Instant::now(),
        life: None,
    };
    let report = folded(
        plan,
        &ended,
        None,
        &format!("the command could not be started: {failed}"),
    );
    let place = run_dir.and_then(|dir| write(plan, dir, &report));
    Known {
        report,
        place,
        page: None,
        elsewhere: None,
        is_left_to_others: false,
    }
}

/// Counts the end of the job if a textfile is configured. The name has the time in it, because several runs may share a
/// directory.
pub(crate) fn count(plan: &Plan, known: &Known) {
    let Some(path) = &plan.settings.textfile else {
        return;
    };
    let unix_ms = paceline_sidecar::host::unix_ms();
    let name = format!("{}/{}/{unix_ms}/{}", plan.node, plan.job, std::process::id());
    let end = (
        name.replace(char::is_control, " "),
        known.report.end.as_ref().map(|end| end.reason),
    );
    if let Err(problem) = ends::count(path, &[end]) {
        let problem = format_args!("the job's end is not counted: {}: {problem}", path.display());
        output::warning(plan.style, problem);
    }
}

/// Finds or creates the report.
pub(crate) fn settle(plan: &Plan, ended: &Ended) -> Known {
    let Some(life) = &ended.life else {
        let report = folded(plan, ended, None, "the job ran unwatched");
        return Known {
            report,
            place: None,
            page: None,
            elsewhere: None,
            is_left_to_others: false,
        };
    };
    if life.others {
        return Known {
            report: folded(plan, ended, None, "other tasks of this node continue"),
            place: None,
            page: None,
            elsewhere: None,
            is_left_to_others: true,
        };
    }
    let dir = life.aggregates_in.clone().unwrap_or_else(|| life.run_dir.clone());
    if let Some(known) = written(plan, life, &dir) {
        return known;
    }
    let why = match (life.finished, life.late) {
        _ if !dir.is_dir() => block::REMOVED,
        (true, _) if life.joined.is_some() => {
            "the job's aggregator runs on another host: its report has the findings"
        }
        (true, _) if life.aggregates_in.is_some() => {
            "the report could not be written at the end, and the journal may be incomplete; is the disk full?"
        }
        (true, _) => "no aggregator was reached: the collected data could not be delivered",
        (false, true) => "the sidecar did not finish in time",
        (false, false) => "the sidecar died",
    };
    let journal = dir.join(journal::FILE);
    let journal = is_of_this_run(plan, &journal).then_some(journal);
    let report = folded(plan, ended, journal.as_deref(), why);
    let elsewhere = life.joined.clone().filter(|_| life.finished);
    // On a shared file system, look for the aggregator's own report, which has more data.
    let path = dir.join(report::FILE);
    let is_told = elsewhere.is_some() && is_of_this_run(plan, &path) && is_of_this_job(plan, &path);
    let place = if is_told {
        Some(shown(plan, &dir, &path))
    } else {
        write(plan, &dir, &report)
    };
    Known {
        report,
        place,
        page: None,
        elsewhere,
        is_left_to_others: false,
    }
}

/// Writes the report's page next to it, and returns the page's path. If the report is on another host, the page is
/// written there.
pub(crate) fn draw(plan: &Plan, known: &Known) -> Option<PathBuf> {
    if known.elsewhere.is_some() || known.is_left_to_others {
        return None;
    }
    let dir = known.place.as_deref()?.parent()?;
    match page::write(dir, &known.report, &plan.settings.policy) {
        Ok(path) => Some(path),
        Err(problem) => {
            let path = dir.join(page::FILE);
            let problem = format_args!("{} could not be written: {problem}", path.display());
            output::warning(plan.style, problem);
            None
        }
    }
}

/// Returns the report that the aggregator wrote at its end, if there is one.
fn written(plan: &Plan, life: &Life, dir: &Path) -> Option<Known> {
    let path = dir.join(report::FILE);
    // Check that the file is of this run, because on a shared file system it may be another node's.
    if !life.finished || life.aggregates_in.is_none() || !is_of_this_run(plan, &path) {
        return None;
    }
    let report = report::read(&path).ok()?;
    // A report without an exit was written before the end, which means that the last one could not be written.
    let is_last = report.job.as_str() == plan.job && !report.exits.is_empty();
    is_last.then(|| Known {
        report,
        place: Some(shown(plan, dir, &path)),
        page: None,
        elsewhere: None,
        is_left_to_others: false,
    })
}

fn is_of_this_job(plan: &Plan, path: &Path) -> bool {
    report::read(path).is_ok_and(|report| report.job.as_str() == plan.job)
}

/// Reports a command that could not be started.
pub(super) fn not_begun(plan: &Plan, place: Option<&Place>, failed: &StartError) -> Outcome {
    output::say(format_args!(
        "{} {failed}",
        plan.style.paint(Paint::Bad, "paceline: error:")
    ));
    let run_dir = place.map(|place| place.run_dir.as_path());
    let mut known = never_began(plan, run_dir, failed);
    // Write the page, because a page of an earlier run must not remain next to this report.
    known.page = draw(plan, &known);
    Outcome {
        code: failed.code(),
        known,
        began: false,
    }
}

/// Returns the report's path, with the run directory as the user wrote it.
fn shown(plan: &Plan, dir: &Path, path: &Path) -> PathBuf {
    let same = fs::canonicalize(&plan.run_dir).is_ok_and(|run_dir| run_dir == dir);
    if same {
        plan.run_dir.join(report::FILE)
    } else {
        path.to_owned()
    }
}

/// Returns true if the file is of this run, and not of an earlier one in the same directory.
fn is_of_this_run(plan: &Plan, path: &Path) -> bool {
    let began = SystemTime::now().checked_sub(plan.started.elapsed() + CLOCK_SLACK);
    let file = fs::metadata(path).ok().filter(fs::Metadata::is_file);
    let modified = file.and_then(|meta| meta.modified().ok());
    modified.is_some_and(|modified| began.is_some_and(|began| modified >= began))
}

/// Creates the report from the journal up to the child's end, including the gaps.
fn folded(plan: &Plan, ended: &Ended, journal: Option<&Path>, why: &str) -> Report {
    let mut notes = vec![format!("{why} (folded by the launcher)")];
    let (mut detector, seen) = match journal.map(|path| fold(plan, path)) {
        Some(Ok((detector, seen, warnings))) => {
            notes.extend(warnings);
            (detector, seen)
        }
        Some(Err(problem)) => {
            notes.push(problem.to_string());
            (begin(plan), Seen::default())
        }
        None => (begin(plan), Seen::default()),
    };
    // The journal's time starts with its first entry, a little later than ours, so this end is slightly late.
    let lasted = ended.at.duration_since(plan.started);
    let end = (Time::ZERO + lasted).max(seen.last);
    detector.advance(end);
    while detector.poll().is_some() {}
    let mut report = detector.report();
    report.remedies = journal
        .and_then(Path::parent)
        .map(books::told_in)
        .unwrap_or_default();
    let (from_s, to_s) = (seen.heard.as_secs_f64(), end.as_secs_f64());
    let node = NodeId::from(plan.node.as_str());
    if !report.exits.iter().any(|exit| exit.node == node) {
        report.exits.push(NodeExit {
            node: node.clone(),
            code: ended.code,
        });
    }
    // Replace an end that says that this node was lost: its command has ended, even if the aggregator lost contact.
    let is_of_others = |end: &Ending| end.reason != Reason::NodeLost || end.node.as_ref() != Some(&node);
    report.end = Some(
        report
            .end
            .filter(is_of_others)
            .unwrap_or_else(|| Ending::of_code(&node, ended.code)),
    );
    report.duration_s = report.duration_s.max(to_s);
    let gaps = &mut report.coverage.gaps;
    // Skip a gap that the detector already knows. It is still open, because the detector did not get the end.
    let told = gaps.iter().any(|gap| gap.node == node && gap.to_s.is_none());
    if to_s - from_s > UNHEARD_S && !told {
        gaps.push(Gap {
            node,
            from_s,
            to_s: Some(to_s),
            why: Arc::from(why),
        });
    }
    report
        .coverage
        .notes
        .extend(notes.iter().map(|note| Arc::from(note.as_str())));
    report
}

/// What the end of the journal shows.
#[derive(Default)]
struct Seen {
    last: Time,
    /// Time of the last frame of this node.
    heard: Time,
}

fn fold(plan: &Plan, path: &Path) -> anyhow::Result<(Detector, Seen, Vec<String>)> {
    let (mut journal, known) = Journal::resume(path, true)?;
    // Take the snapshot's time for both, because this node was connected then.
    let at = Time::from_secs_f64(known.report().duration_s);
    let mut seen = Seen { last: at, heard: at };
    // Use the default tables, because changes to them are events in the journal.
    let detector = journal.fold_on(known, |entry, detector| {
        while detector.poll().is_some() {}
        seen.last = seen.last.max(entry.at_ns);
        // Ignore the aggregator's own entries. They have its node's name, but do not come from the node's sidecar.
        if entry.frame.node.as_str() == plan.node && entry.frame.agent != OWN_AGENT {
            seen.heard = seen.heard.max(entry.at_ns);
        }
        anyhow::Ok(())
    })?;
    let warnings = journal.warnings();
    Ok((detector, seen, warnings))
}

/// Creates a detector that knows only the job's name.
fn begin(plan: &Plan) -> Detector {
    let mut detector = Detector::new(plan.settings.policy.clone());
    let job = Job {
        job: JobId::from(plan.job.as_str()),
        paceline: Arc::from(env!("CARGO_PKG_VERSION")),
        listened_to: None,
    };
    let (node, event) = (NodeId::from(plan.node.as_str()), Event::Job(job));
    let frame = Frame {
        v: SCHEMA_VERSION,
        node,
        agent: OWN_AGENT,
        seq: 1,
        provenance: Provenance::Live,
        event,
    };
    detector.observe(Time::ZERO, &frame);
    detector
}

/// Writes the report, unless a running aggregator will write a better one.
fn write(plan: &Plan, dir: &Path, report: &Report) -> Option<PathBuf> {
    let path = dir.join(report::FILE);
    let lock = File::open(dir).ok()?;
    let taken = flock(&lock, FlockOperation::NonBlockingLockExclusive) == Err(rustix::io::Errno::WOULDBLOCK);
    if taken {
        return path.exists().then(|| shown(plan, dir, &path));
    }
    // Remove the reserved file, which makes room for the report on a full disk.
    let _ = fs::remove_file(dir.join(".reserve"));
    match report::write(dir, report) {
        Ok(path) => Some(shown(plan, dir, &path)),
        Err(problem) => {
            let path = path.display();
            output::warning(plan.style, format_args!("{path} could not be written: {problem}"));
            None
        }
    }
}
