//! Counts how jobs ended, at a time when there is no aggregator any more. The counts are stored in a file for
//! node_exporter's textfile collector (<https://github.com/prometheus/node_exporter#textfile-collector>).

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use paceline_health::report::Reason;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::format::families::{Families, counters};
use super::{Facts, Format};
use crate::host::read_plain;
use crate::safe_file;
use crate::sink::write_whole_for_all;

const NAME: &str = "paceline_jobs_ended_total";
const HELP: &str = "Ended jobs, by the end reason in their report; unknown: none was recorded.";
/// The reason used for a report that contains no end.
const UNKNOWN: &str = "unknown";
/// Maximum number of job names to remember, so that none is counted twice.
const MOST: usize = 4096;
/// Maximum size of the files.
const MOST_BYTES: u64 = 1 << 20;
/// How long to wait for another process's lock.
const PATIENCE: Duration = Duration::from_secs(2);

/// Counts ends in `path`. Each end has a name and a reason. A name is counted once, even if it is passed again. Names
/// contain no newline.
///
/// # Errors
/// If the file, or the list of names beside it, cannot be read or written.
pub fn count(path: &Path, ends: &[(String, Option<Reason>)]) -> io::Result<()> {
    let beside = path.with_added_extension("counted");
    let mut names = safe_file::open_to_write(&beside)?;
    // Any user who can open the file could lock it, so make it private.
    names.set_permissions(Permissions::from_mode(0o600))?;
    lock(&names)?;
    let mut text = String::new();
    (&names).take(MOST_BYTES).read_to_string(&mut text)?;
    let mut known: Vec<&str> = text.lines().collect();
    let mut counts = read(path)?;
    for (name, reason) in ends {
        if !known.contains(&name.as_str()) {
            known.push(name);
            *counts
                .entry(reason.map_or(UNKNOWN, Reason::name).to_owned())
                .or_default() += 1.0;
        }
    }
    // The collector runs as another user, so the file must be readable by all.
    write_whole_for_all(path, page(counts).as_bytes())?;
    let surplus = known.len().saturating_sub(MOST);
    let kept = known[surplus..].join("\n");
    names.set_len(0)?;
    names.rewind()?;
    names.write_all(kept.as_bytes())
}

/// Takes the lock. Waits only briefly, because the end of a job waits for this.
fn lock(names: &File) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        match flock(names, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < until => thread::sleep(PATIENCE / 50),
            Err(Errno::WOULDBLOCK) => {
                return Err(io::Error::other(
                    "another process has locked its list for seconds",
                ));
            }
            done => return Ok(done?),
        }
    }
}

/// Reads the counts. The series of all reasons start with the first end of any reason, so that a rate can be computed
/// for each.
fn read(path: &Path) -> io::Result<BTreeMap<String, f64>> {
    let names = Reason::ALL.iter().map(|reason| reason.name()).chain([UNKNOWN]);
    let mut counts: BTreeMap<String, f64> = names.map(|name| (name.to_owned(), 0.0)).collect();
    let text = match fs::metadata(path) {
        Ok(meta) if !meta.is_file() => return Err(io::Error::other("not a file that can store counts")),
        Ok(_) => read_plain(path, MOST_BYTES)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    let is_ours = |line: &str| line.is_empty() || line.starts_with('#') || line.starts_with(NAME);
    if let Some(other) = text.lines().find(|line| !is_ours(line)) {
        let why = format!("was not written by paceline, and would be replaced: {other:.60}");
        return Err(io::Error::other(why));
    }
    let start = format!("{NAME}{{reason=\"");
    for line in text.lines() {
        let parts = line.strip_prefix(&start).and_then(|rest| rest.split_once("\"} "));
        if let Some((reason, value)) = parts
            && let (Some(count), Ok(value)) = (counts.get_mut(reason), value.parse())
        {
            *count = value;
        }
    }
    Ok(counts)
}

/// Number of ends by reason.
struct Ends(BTreeMap<String, f64>);

impl Facts for Ends {
    fn families(&self, out: &mut Families<'_>) {
        let values = self.0.iter().map(|(reason, count)| ([reason.clone()], *count));
        counters(out, NAME, HELP, ["reason"], values);
    }
}

fn page(counts: BTreeMap<String, f64>) -> String {
    Format::Text.page(&Ends(counts))
}

#[cfg(test)]
mod tests {
    use super::super::tests::is_in_the_contract;
    use super::*;

    #[test]
    fn each_end_once_and_by_its_reason() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("paceline.prom");
        let end = |name: &str, reason| (name.to_owned(), reason);
        count(&path, &[end("7/7.0", Some(Reason::Error)), end("7/7.1", None)]).unwrap();
        count(&path, &[end("7/7.0", Some(Reason::Error))]).unwrap();
        count(
            &path,
            &[
                end("8/8.0", Some(Reason::Error)),
                end("8/8.0", Some(Reason::Error)),
            ],
        )
        .unwrap();
        let page = fs::read_to_string(&path).unwrap();
        for wanted in [
            "paceline_jobs_ended_total{reason=\"error\"} 2\n",
            "paceline_jobs_ended_total{reason=\"unknown\"} 1\n",
            "paceline_jobs_ended_total{reason=\"time-limit\"} 0\n",
        ] {
            assert!(page.contains(wanted), "{page}");
        }
        assert_eq!(is_in_the_contract(&page), 1);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        // Concurrent calls lose no counts.
        std::thread::scope(|scope| {
            for job in 0..3 {
                let path = &path;
                scope.spawn(move || count(path, &[(format!("n/{job}"), Some(Reason::Success))]).unwrap());
            }
        });
        let page = fs::read_to_string(&path).unwrap();
        assert!(
            page.contains("paceline_jobs_ended_total{reason=\"success\"} 3\n"),
            "{page}"
        );
        // Foreign series in the file are neither counted nor kept.
        fs::write(&path, "paceline_jobs_ended_total{reason=\"x\"} 7\n").unwrap();
        count(&path, &[]).unwrap();
        assert!(!fs::read_to_string(&path).unwrap().contains("\"x\""));
        let list = path.with_added_extension("counted");
        assert_eq!(fs::metadata(&list).unwrap().permissions().mode() & 0o777, 0o600);
    }

    /// Waits are short, and foreign content is not lost.
    #[test]
    fn whatever_is_in_its_way_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |path: &Path, why: &str| {
            let error = count(path, &[("n/1".to_owned(), None)]).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        let theirs = dir.path().join("theirs.prom");
        fs::write(&theirs, "other_metric 5\n").unwrap();
        refused(&theirs, "not written by paceline");
        assert_eq!(fs::read_to_string(&theirs).unwrap(), "other_metric 5\n");
        let pipe = dir.path().join("pipe.prom");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        refused(&pipe, "not a file");
        let held = dir.path().join("held.prom");
        count(&held, &[]).unwrap();
        let list = File::open(held.with_added_extension("counted")).unwrap();
        flock(&list, FlockOperation::LockExclusive).unwrap();
        refused(&held, "another process");
    }

    #[test]
    fn all_reasons() {
        let names: std::collections::BTreeSet<_> = Reason::ALL.iter().map(|reason| reason.name()).collect();
        assert_eq!(names.len(), Reason::ALL.len());
    }
}
