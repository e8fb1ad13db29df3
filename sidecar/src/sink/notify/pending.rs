//! Lists and sends the unsent notices in the spools of a run.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::courier::Courier;
use super::exec::Leash;
use super::receiver::Receiver;
use super::spool::Spool;
use super::{FOLDER, STATE};

/// Notices that a receiver has not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingNotices {
    /// The receiver, without secrets.
    pub receiver: String,
    /// Number of waiting notices.
    pub notices: usize,
    /// The directory of the notices.
    pub dir: PathBuf,
}

impl PendingNotices {
    /// Returns the pending notices of one receiver, or `None` if it accepted all.
    pub(super) fn of(receiver: &Receiver, spool: &Spool) -> Option<PendingNotices> {
        let notices = waiting(spool);
        (notices > 0).then(|| PendingNotices {
            receiver: receiver.address(),
            notices,
            dir: spool.dir().to_owned(),
        })
    }
}

fn waiting(spool: &Spool) -> usize {
    let files = spool.list().unwrap_or_default();
    let count = |path: &Path| Spool::read(path).map_or(1, |parcel| parcel.notices.len());
    files.iter().map(|(_, path)| count(path)).sum()
}

/// Returns the notices of a run that these receivers have not accepted.
pub fn pending(run_dir: &Path, receivers: &[Receiver]) -> Vec<PendingNotices> {
    let of = |receiver: &Receiver| PendingNotices::of(receiver, &spool(run_dir, receiver).ok()??);
    receivers.iter().filter_map(of).collect()
}

/// Tries once to send waiting notices. For each of these receivers that had any, returns the number sent and the
/// remaining notices.
///
/// # Errors
/// If a spool cannot be read.
pub fn flush(run_dir: &Path, receivers: &[Receiver]) -> io::Result<Vec<(usize, PendingNotices)>> {
    let mut sent = Vec::new();
    for receiver in receivers {
        let Some(spool) = spool(run_dir, receiver)? else {
            continue;
        };
        let Some(before) = PendingNotices::of(receiver, &spool) else {
            continue;
        };
        let leash = Leash::default();
        Courier::new(receiver.clone(), spool.clone(), leash.clone()).once();
        leash.pull();
        let notices = waiting(&spool);
        sent.push((
            before.notices.saturating_sub(notices),
            PendingNotices { notices, ..before },
        ));
    }
    Ok(sent)
}

/// Returns spools with waiting notices for receivers other than these.
///
/// # Errors
/// If the run's directory cannot be read. A missing directory is not an error.
pub fn strangers(run_dir: &Path, receivers: &[Receiver]) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(run_dir.join(FOLDER)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        let is_known = receivers
            .iter()
            .any(|receiver| entry.file_name() == receiver.name().as_str());
        if !is_known && entry.file_name() != STATE && entry.file_type()?.is_dir() {
            let holds_any = Spool::of(&entry.path())
                .list()
                .is_ok_and(|files| !files.is_empty());
            found.extend(holds_any.then(|| entry.path()));
        }
    }
    found.sort();
    Ok(found)
}

/// Opens a receiver's spool for inspection. Does not create it if it is missing.
fn spool(run_dir: &Path, receiver: &Receiver) -> io::Result<Option<Spool>> {
    let dir = run_dir.join(FOLDER).join(receiver.name());
    dir.is_dir().then(|| Spool::open(&dir)).transpose()
}

#[cfg(test)]
mod tests {
    use super::super::spool::Parcel;
    use super::*;

    /// Another user may be able to write there, for example in a shared directory. Such a user must not be able to
    /// block the end of a job with a pipe.
    #[test]
    fn a_pipe_in_a_spool_holds_up_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let receivers = [Receiver::parse("exec=/bin/true").unwrap()];
        let place = dir.path().join(FOLDER).join(receivers[0].name());
        let own = Spool::open(&place).unwrap();
        let made = std::process::Command::new("mkfifo")
            .arg(place.join("0000000000000000.json"))
            .status();
        assert!(made.unwrap().success());
        let parcel = Parcel {
            unix_ms: 1,
            notices: Vec::new(),
        };
        own.put(&parcel).unwrap();
        assert_eq!(
            pending(dir.path(), &receivers)[0].notices,
            1,
            "nobody knows how many are in it"
        );
        let sent = flush(dir.path(), &receivers).unwrap();
        assert_eq!(sent[0].1.notices, 0);
        assert!(place.join("refused/0000000000000000.json").exists());
        assert!(own.is_empty(), "what lay behind it was sent");
    }
}
