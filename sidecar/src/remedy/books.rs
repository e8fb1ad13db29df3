//! The records of remedies: the audit with one line per decision, the guard's state, and the ledger that the jobs of a
//! site share.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use paceline_health::remedy::{Decision, Ledger, Remedies, Saved};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::aggregator::clock;
use crate::host::read_last_lines;

use crate::safe_file;
use crate::sink::write_whole;
use crate::warn;

/// File name of the audit, in the run directory.
pub const AUDIT: &str = "remedies.ndjson";
/// File name of the guard's state, in the run directory.
pub const STATE: &str = "remedies.json";
/// Maximum size of a ledger that is read. Of an audit, at most this much is read from its end.
const MOST_BYTES: u64 = 16 << 20;

/// A line of the audit, which is a decision or its progress.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Line<'a> {
    Decision(&'a Decision),
    Course {
        unix_ms: u64,
        mark: &'a str,
        what: &'a str,
    },
}

/// A line of the audit, as read.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kept {
    Decision(Box<Decision>),
    Course { mark: String, what: String },
}

/// The records of remedies (see the module documentation).
#[derive(Debug)]
pub struct Books {
    dir: PathBuf,
    ledger: Option<PathBuf>,
    told: Remedies,
}

impl Books {
    /// Opens the records of a run directory and the ledger of its site. `run` is the number of its journal.
    pub fn new(dir: &Path, ledger: Option<PathBuf>, run: u64) -> Books {
        Books {
            dir: dir.to_owned(),
            ledger,
            told: of_audit(dir, run),
        }
    }

    /// Returns the contents of this run's audit.
    pub fn told(&self) -> &Remedies {
        &self.told
    }

    /// Returns the guard's saved state.
    ///
    /// # Errors
    /// If the file exists but cannot be read. A guard without its state could repeat an action.
    pub fn saved(&self) -> io::Result<Saved> {
        match safe_file::read_own(&self.dir.join(STATE)) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Saved::default()),
            Err(error) => Err(error),
        }
    }

    /// Saves the state. Call this before a decision is carried out.
    ///
    /// # Errors
    /// If the state cannot be written. No action may be taken then.
    pub fn save(&self, saved: &Saved) -> io::Result<()> {
        write_whole(&self.dir.join(STATE), &serde_json::to_vec(saved)?)
    }

    /// Records a decision.
    pub fn decision(&mut self, decision: &Decision) {
        self.told.decision(decision);
        self.line(&Line::Decision(decision));
    }

    /// Records the progress of a decision.
    pub fn course(&mut self, unix_ms: u64, mark: &str, what: &str) {
        self.told.course(mark, what);
        self.line(&Line::Course { unix_ms, mark, what });
    }

    fn line(&self, line: &Line<'_>) {
        let mut text = serde_json::to_vec(line).unwrap_or_default();
        text.push(b'\n');
        let path = self.dir.join(AUDIT);
        if let Err(error) = safe_file::append(&path).and_then(|mut file| file.write_all(&text)) {
            warn::once("remedies", format_args!("{}: {error}", path.display()));
        }
    }

    /// Returns the site's ledger, which stays locked until it is closed. Without a ledger, returns an empty one for
    /// this job.
    ///
    /// # Errors
    /// If the ledger is not available, because another process holds it or it cannot be read.
    pub fn site(&self) -> io::Result<Site> {
        let Some(path) = &self.ledger else {
            return Ok(Site {
                ledger: Ledger::default(),
                held: None,
            });
        };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        // Lock a separate file, because the ledger itself is replaced.
        let lock = safe_file::open_shared(&path.with_added_extension("lock"))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        let mut bytes = Vec::new();
        match safe_file::open(path) {
            Ok(file) => {
                file.take(MOST_BYTES).read_to_end(&mut bytes)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let ledger = if bytes.is_empty() {
            Ledger::default()
        } else {
            serde_json::from_slice(&bytes)?
        };
        Ok(Site {
            ledger,
            held: Some((path.clone(), lock)),
        })
    }
}

/// Returns the audit of the latest run in a run directory. It is empty if there is none.
pub fn told_in(dir: &Path) -> Remedies {
    clock::number(dir).map_or_else(Remedies::default, |run| of_audit(dir, run))
}

/// Reads the audit of a run. Earlier runs in the same directory have also written to the file. If it is too long, only
/// its end is read, which belongs to this run. An incomplete last line is a decision that was never carried out.
fn of_audit(dir: &Path, run: u64) -> Remedies {
    let text = read_last_lines(&dir.join(AUDIT), MOST_BYTES).unwrap_or_default();
    let mut told = Remedies::default();
    for line in text.lines().filter_map(|line| serde_json::from_str(line).ok()) {
        match line {
            Kept::Decision(decision) if decision.ask.incident.run == run => told.decision(&decision),
            Kept::Decision(_) => {}
            Kept::Course { mark, what } => told.course(&mark, &what),
        }
    }
    told
}

/// The ledger of a site, locked.
#[derive(Debug)]
pub struct Site {
    /// Its contents.
    pub ledger: Ledger,
    held: Option<(PathBuf, File)>,
}

impl Site {
    /// Writes the ledger back and unlocks it.
    ///
    /// # Errors
    /// If the ledger cannot be written. No action may be taken then.
    pub fn close(self) -> io::Result<()> {
        match &self.held {
            Some((path, _lock)) => write_whole(path, &serde_json::to_vec(&self.ledger)?),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use paceline_health::Provenance;
    use paceline_health::remedy::{Ask, Incident, Outcome, Response};
    use paceline_health::verdict::{Finding, Severity, Subject};

    use super::*;

    fn decision(run: u64, unix_ms: u64) -> Decision {
        let ask = Ask {
            incident: Incident { run, id: unix_ms },
            job: "j".into(),
            account: Arc::from(""),
            finding: Finding::GpuLost,
            subject: Subject::Node { node: "n1".into() },
            severity: Severity::Critical,
            provenance: Provenance::Live,
            observe_only: false,
            response: Response::Requeue,
            checkpoint: true,
        };
        Decision {
            unix_ms,
            outcome: Outcome::Act,
            ask,
            mark: Arc::from("mark"),
        }
    }

    /// Earlier runs in a directory have written more than the maximum that is read.
    #[test]
    fn of_a_long_audit_the_end_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let mut books = Books::new(dir.path(), None, 1);
        books.decision(&decision(2, 10));
        let filler = format!("\"{}\"\n", "x".repeat(1 << 20));
        let mut audit = File::options().append(true).open(dir.path().join(AUDIT)).unwrap();
        (0..17).for_each(|_| audit.write_all(filler.as_bytes()).unwrap());
        books.decision(&decision(2, 20));
        books.course(21, "mark", "done");
        let told = of_audit(dir.path(), 2);
        let latest: Vec<u64> = told.latest.iter().map(|told| told.unix_ms).collect();
        assert_eq!(latest, [20]);
        assert_eq!(*told.latest[0].course[0], *"done");
    }

    #[test]
    fn a_pipe_in_the_place_of_an_audit_holds_up_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let made = std::process::Command::new("mkfifo")
            .arg(dir.path().join(AUDIT))
            .status();
        assert!(made.unwrap().success());
        assert!(of_audit(dir.path(), 1).is_empty());
    }
}
