//! What is written down of remedies: the audit, a line a decision; what the guard must remember; and the ledger that the
//! jobs of a site share.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use paceline_health::remedy::{Decision, Ledger, Saved};
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;

use crate::sink::write_whole;
use crate::warn;

/// The audit, in the run directory.
pub const AUDIT: &str = "remedies.ndjson";
/// What the guard remembers, in the run directory.
pub const STATE: &str = "remedies.json";
/// Largest ledger that is read.
const MOST_BYTES: u64 = 16 << 20;

/// A line of the audit: a decision, or what became of one.
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

/// See the module.
#[derive(Debug)]
pub struct Books {
    dir: PathBuf,
    ledger: Option<PathBuf>,
}

impl Books {
    /// The books of a run directory and the ledger of its site.
    pub fn new(dir: &Path, ledger: Option<PathBuf>) -> Books {
        Books {
            dir: dir.to_owned(),
            ledger,
        }
    }

    /// What the guard remembered.
    ///
    /// # Errors
    /// When there is something that cannot be read: a guard that forgot what it did could do it again.
    pub fn saved(&self) -> io::Result<Saved> {
        match fs::read(self.dir.join(STATE)) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Saved::default()),
            Err(error) => Err(error),
        }
    }

    /// Keeps it: before what was decided is done.
    ///
    /// # Errors
    /// When it cannot be written; nothing may be done then.
    pub fn save(&self, saved: &Saved) -> io::Result<()> {
        write_whole(&self.dir.join(STATE), &serde_json::to_vec(saved)?)
    }

    /// A decision.
    pub fn decision(&self, decision: &Decision) {
        self.line(&Line::Decision(decision));
    }

    /// What became of it.
    pub fn course(&self, unix_ms: u64, mark: &str, what: &str) {
        self.line(&Line::Course { unix_ms, mark, what });
    }

    fn line(&self, line: &Line<'_>) {
        let mut text = serde_json::to_vec(line).unwrap_or_default();
        text.push(b'\n');
        let path = self.dir.join(AUDIT);
        let file = File::options().create(true).append(true).open(&path);
        if let Err(error) = file.and_then(|mut file| file.write_all(&text)) {
            warn::once("remedies", format_args!("{}: {error}", path.display()));
        }
    }

    /// The site's ledger, ours until it is closed; without one, this job's is all there is.
    ///
    /// # Errors
    /// When it cannot be had now: somebody else has it, or it cannot be read.
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
        // A file of its own for the lock: the ledger itself is replaced.
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path.with_added_extension("lock"))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        let mut bytes = Vec::new();
        match File::open(path) {
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

/// The ledger of a site, locked.
#[derive(Debug)]
pub struct Site {
    /// What it says.
    pub ledger: Ledger,
    held: Option<(PathBuf, File)>,
}

impl Site {
    /// Writes it back, and lets others have it.
    ///
    /// # Errors
    /// When it cannot be written; nothing may be done then.
    pub fn close(self) -> io::Result<()> {
        match &self.held {
            Some((path, _lock)) => write_whole(path, &serde_json::to_vec(&self.ledger)?),
            None => Ok(()),
        }
    }
}
