//! The fabric's passport, which has the results of every preflight at this site as append-only lines.
//!
//! There is one file per leading node, in a folder that may be shared. Writers on different hosts therefore never
//! append to the same file, where a shared file system would not keep their lines apart. On one host, a lock serializes
//! the writers. A line begins with the checksum of the rest, so that a line cut short by a kill is skipped when
//! reading. The next line after such a line begins on a new line.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use paceline_health::preflight::{Metric, Past, Place, Sample};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use paceline_health::codec::hash::fnv;
use paceline_sidecar::safe_file;

/// Extension of the passport files.
const ENDING: &str = "passport";
/// Size limit of a line that is read.
const MOST_LINE: usize = 64 << 10;
/// Limit of bytes that are read, latest first. A large job's preflight adds a few megabytes.
const MOST: u64 = 64 << 20;
/// Limit of values of a place that are compared. Only the most recent ones count, because a year ago it was a different
/// machine.
const RECENT: usize = 50;

/// One line of a passport.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stamp {
    /// Time, in seconds since 1970.
    pub at: u64,
    /// The job of the preflight.
    pub job: Arc<str>,
    /// True if there was no confirmed finding.
    pub well: bool,
    /// The place.
    pub place: Place,
    /// The metric.
    pub metric: Metric,
    /// The conditions under which the value was measured.
    pub conditions: Arc<str>,
    /// The best value in that preflight.
    pub value: f64,
}

/// A folder of passports.
#[derive(Clone, Debug)]
pub struct Passports {
    folder: PathBuf,
}

/// The lines that were read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// The lines, oldest first.
    pub stamps: Vec<Stamp>,
    /// Number of lines that were cut short, damaged, or from a later version.
    pub broken: usize,
    /// Number of bytes of older lines that were not read.
    pub left: u64,
    /// Passports that are not regular files, or not readable by this user.
    pub unread: Vec<PathBuf>,
}

impl Passports {
    /// Returns the passports in this folder, which need not exist yet.
    pub fn at(folder: impl Into<PathBuf>) -> Passports {
        Passports {
            folder: folder.into(),
        }
    }

    /// Appends lines to this node's file.
    pub fn add(&self, node: &str, stamps: &[Stamp]) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let plain = |c: char| {
            if c.is_ascii_alphanumeric() || "._-".contains(c) {
                c
            } else {
                '_'
            }
        };
        let name: String = node.chars().map(plain).take(100).collect();
        let path = self.folder.join(format!("{name}.{ENDING}"));
        let mut file = safe_file::append_shared(&path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        let mut text = String::new();
        if !ends_in_newline(&mut file)? {
            // A writer was killed within a line, so start a new line.
            text.push('\n');
        }
        for stamp in stamps {
            let line = serde_json::to_string(stamp).map_err(io::Error::other)?;
            text += &format!("{:016x} {line}\n", fnv(line.as_bytes()));
        }
        file.write_all(text.as_bytes())?;
        file.sync_data()
    }

    /// Reads the folder. A missing folder counts as empty.
    pub fn read(&self) -> io::Result<History> {
        self.read_latest(MOST)
    }

    /// Reads the most recently written files from their end, at most this many bytes.
    fn read_latest(&self, most: u64) -> io::Result<History> {
        let entries = match fs::read_dir(&self.folder) {
            Err(problem) if problem.kind() == io::ErrorKind::NotFound => return Ok(History::default()),
            other => other?,
        };
        let (mut files, mut history) = (Vec::new(), History::default());
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == ENDING) {
                // An unreadable or vanished file does not affect the others.
                let written = fs::metadata(&path).and_then(|meta| meta.modified());
                match written {
                    Ok(at) => files.push((at, path)),
                    Err(_) => history.unread.push(path),
                }
            }
        }
        files.sort();
        let mut room = most;
        for (_, path) in files.into_iter().rev() {
            match read_file(&path, room, &mut history) {
                Ok(taken) => room -= taken,
                Err(_) => history.unread.push(path),
            }
        }
        history.stamps.sort_by_key(|stamp| stamp.at);
        Ok(history)
    }
}

impl History {
    /// Returns what was skipped, in one line per kind.
    pub fn left_out(&self) -> Vec<String> {
        let mut skipped = Vec::new();
        if self.broken > 0 {
            skipped.push(format!(
                "{} lines of the passports cannot be read and are skipped",
                self.broken
            ));
        }
        if self.left > 0 {
            skipped.push(format!("{} KiB of older lines are skipped", self.left >> 10));
        }
        for path in &self.unread {
            skipped.push(format!("{} cannot be read and is skipped", path.display()));
        }
        skipped
    }

    /// Returns earlier values for the places, metrics and conditions of `samples`. Only values from preflights in which
    /// they were good are returned, because a bad value must not become a baseline.
    pub fn past(&self, samples: &[Sample]) -> Vec<Past> {
        type Key<'a> = (&'a Place, Metric, &'a Arc<str>);
        let mut past: BTreeMap<Key<'_>, Vec<f64>> = samples
            .iter()
            .map(|sample| ((&sample.place, sample.metric, &sample.conditions), Vec::new()))
            .collect();
        for stamp in self.stamps.iter().filter(|stamp| stamp.well) {
            if let Some(values) = past.get_mut(&(&stamp.place, stamp.metric, &stamp.conditions)) {
                values.push(stamp.value);
            }
        }
        past.into_iter()
            .filter(|(_, values)| !values.is_empty())
            .map(|((place, metric, conditions), mut values)| Past {
                place: place.clone(),
                metric,
                conditions: Arc::clone(conditions),
                values: values.split_off(values.len().saturating_sub(RECENT)),
            })
            .collect()
    }
}

fn ends_in_newline(file: &mut File) -> io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(true);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

/// Reads the last `room` bytes of a file. Returns how many bytes were read.
fn read_file(path: &Path, room: u64, history: &mut History) -> io::Result<u64> {
    let mut file = safe_file::open(path)?;
    let length = file.metadata()?.len();
    let taken = length.min(room);
    file.seek(SeekFrom::Start(length - taken))?;
    history.left += length - taken;
    // Limit the read, so that lines written in the meantime are ignored.
    let mut reader = BufReader::new(file.take(taken));
    let mut line = Vec::new();
    if taken < length {
        // Skip the rest of a line that began before the limit.
        let skipped = reader.skip_until(b'\n')?;
        history.left += skipped as u64;
    }
    loop {
        line.clear();
        let read = reader
            .by_ref()
            .take(MOST_LINE as u64)
            .read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(taken);
        }
        let text = line.strip_suffix(b"\n");
        match text.and_then(parse) {
            Some(stamp) => history.stamps.push(stamp),
            // The empty line after a line that was cut short is not counted separately.
            None if text == Some(b"") => {}
            None => history.broken += 1,
        }
    }
}

fn parse(line: &[u8]) -> Option<Stamp> {
    let (sum, json) = line.split_at_checked(17)?;
    let sum = u64::from_str_radix(std::str::from_utf8(&sum[..16]).ok()?, 16).ok()?;
    if sum != fnv(json) {
        return None;
    }
    serde_json::from_slice(json).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn stamp(at: u64, node: &str, value: f64) -> Stamp {
        Stamp {
            at,
            job: "j".into(),
            well: true,
            place: Place::Node { node: node.into() },
            metric: Metric::CpuGemm,
            conditions: "c".into(),
            value,
        }
    }

    #[test]
    fn many_writers_lose_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let passports = Passports::at(folder.path().join("p"));
        assert_eq!(passports.read().unwrap(), History::default());
        thread::scope(|scope| {
            for writer in 0..8_u64 {
                let passports = &passports;
                scope.spawn(move || {
                    for at in 0..50 {
                        let node = format!("n{}", writer % 3);
                        passports
                            .add(&node, &[stamp(at, &node, 1.0), stamp(at, &node, 2.0)])
                            .unwrap();
                    }
                });
            }
        });
        let history = passports.read().unwrap();
        assert_eq!((history.stamps.len(), history.broken), (800, 0));
    }

    #[test]
    fn a_write_that_was_cut_anywhere_loses_only_itself() {
        let folder = tempfile::tempdir().unwrap();
        let passports = Passports::at(folder.path());
        passports.add("n1", &[stamp(1, "n1", 1.0)]).unwrap();
        let path = folder.path().join("n1.passport");
        let before = fs::read(&path).unwrap();
        passports.add("n1", &[stamp(2, "n1", 2.0)]).unwrap();
        let whole = fs::read(&path).unwrap();
        for cut in before.len()..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            passports.add("n1", &[stamp(3, "n1", 3.0)]).unwrap();
            let history = passports.read().unwrap();
            let values: Vec<f64> = history.stamps.iter().map(|stamp| stamp.value).collect();
            // A line that lacks only its newline is complete.
            let is_whole = cut == whole.len() - 1;
            assert_eq!(
                values,
                if is_whole {
                    vec![1.0, 2.0, 3.0]
                } else {
                    vec![1.0, 3.0]
                },
                "cut at {cut}"
            );
            assert_eq!(history.broken, usize::from(cut > before.len() && !is_whole));
        }
    }

    #[test]
    fn what_is_no_passport_costs_the_others_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let passports = Passports::at(folder.path());
        passports.add("n1", &[stamp(1, "n1", 100.0)]).unwrap();
        fs::create_dir(folder.path().join("a.passport")).unwrap();
        std::os::unix::net::UnixListener::bind(folder.path().join("b.passport")).unwrap();
        let history = passports.read().unwrap();
        assert_eq!((history.stamps.len(), history.unread.len()), (1, 2));
        let skipped = history.left_out().join("\n");
        assert!(
            skipped.contains("a.passport cannot be read and is skipped"),
            "{skipped}"
        );
    }

    #[test]
    fn of_more_than_is_read_the_latest_is() {
        let folder = tempfile::tempdir().unwrap();
        let passports = Passports::at(folder.path());
        for at in 0..100 {
            passports.add("n1", &[stamp(at, "n1", 1.0)]).unwrap();
        }
        let path = folder.path().join("n1.passport");
        let (length, then) = (
            fs::metadata(&path).unwrap().len(),
            std::time::SystemTime::UNIX_EPOCH,
        );
        File::options()
            .append(true)
            .open(&path)
            .unwrap()
            .set_modified(then)
            .unwrap();
        passports.add("n2", &[stamp(500, "n2", 1.0)]).unwrap();
        let newer = fs::metadata(folder.path().join("n2.passport")).unwrap().len();
        let times = |most| {
            let history = passports.read_latest(most).unwrap();
            assert_eq!(history.broken, 0);
            let times: Vec<u64> = history.stamps.iter().map(|stamp| stamp.at).collect();
            (times, history.left)
        };
        assert_eq!(times(length + newer).1, 0);
        let (some, left) = times(length / 2 + newer);
        assert_eq!(some.last(), Some(&500));
        assert_eq!(some[some.len() - 2], 99);
        assert!(
            (40..=50).contains(&some.len()) && left >= length / 2,
            "{some:?} {left}"
        );
        assert_eq!(times(newer), (vec![500], length));
        assert_eq!(times(0).0, [0; 0]);
    }

    #[test]
    fn the_past_is_of_the_same_conditions_and_well() {
        let mut history = History::default();
        for at in 0..60 {
            history.stamps.push(stamp(at, "n1", at as f64));
        }
        history.stamps.push(Stamp {
            well: false,
            ..stamp(61, "n1", 1e9)
        });
        history.stamps.push(stamp(62, "n2", 1e9));
        let sample = Sample {
            place: Place::Node { node: "n1".into() },
            metric: Metric::CpuGemm,
            conditions: "c".into(),
            rail: None,
            round: 0,
            value: 1.0,
            spread: 0.0,
            passes: 1,
            bytes: 0,
        };
        let past = history.past(std::slice::from_ref(&sample));
        assert_eq!(past.len(), 1);
        assert_eq!((past[0].values.len(), past[0].values[0]), (RECENT, 10.0));
        let other = Sample {
            conditions: "d".into(),
            ..sample
        };
        assert!(history.past(&[other]).is_empty());
    }
}
