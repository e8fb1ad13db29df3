//! Records from `/dev/kmsg`, one a read, or lines from a file that grows, is cut or replaced.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The kernel gives whole records, and refuses a buffer that is too small for one.
const BUFFER: usize = 16 << 10;
/// Records (or pieces of a file) read in one poll at most: the rest is read in the next.
const MAX_READS: usize = 4096;
/// Longest line of a file that is kept.
const MAX_LINE: usize = 8 << 10;

/// How a record stands to the beginning of the watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// From before it.
    Old,
    /// From after it.
    New,
    /// Written then, nanoseconds on CLOCK_MONOTONIC.
    Stamped(u64),
}

/// Why a log cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is none.
    #[error("no such file")]
    Missing,
    /// This user may not read it.
    #[error(
        "{0}; the kernel shows its log to root, or to all with kernel.dmesg_restrict=0 (in a container: to those it is mounted for)"
    )]
    Denied(io::Error),
    /// It failed in another way.
    #[error("{0}")]
    Failed(io::Error),
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> OpenError {
        match error.kind() {
            io::ErrorKind::NotFound => OpenError::Missing,
            io::ErrorKind::PermissionDenied => OpenError::Denied(error),
            _ => OpenError::Failed(error),
        }
    }
}

/// An open log.
#[derive(Debug)]
pub struct Log {
    file: File,
    kind: Kind,
    buffer: Vec<u8>,
    caught_up: bool,
}

#[derive(Debug)]
enum Kind {
    Device { next: Option<u64>, lost: u64 },
    File(Lines),
}

#[derive(Debug)]
struct Lines {
    path: PathBuf,
    inode: u64,
    read: u64,
    /// What stands before this is from before the watch.
    old: u64,
    rest: Vec<u8>,
    /// The line is too long: it is skipped to its end.
    skipping: bool,
    is_pipe: bool,
}

impl Log {
    /// Opens it. `existing` says how what a file holds already stands to the watch; a device's records say it.
    pub fn open(path: &Path, existing: Age) -> Result<Log, OpenError> {
        let no_wait = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let file = File::options().read(true).custom_flags(no_wait).open(path)?;
        let meta = file.metadata()?;
        let kind = if meta.file_type().is_char_device() {
            Kind::Device { next: None, lost: 0 }
        } else {
            Kind::File(Lines {
                path: path.to_owned(),
                inode: meta.ino(),
                read: 0,
                old: if existing == Age::Old { meta.len() } else { 0 },
                rest: Vec::new(),
                skipping: false,
                is_pipe: meta.file_type().is_fifo(),
            })
        };
        let buffer = vec![0; BUFFER];
        Ok(Log {
            file,
            kind,
            buffer,
            caught_up: false,
        })
    }

    /// Records that were gone before they were read.
    pub fn lost(&self) -> u64 {
        match self.kind {
            Kind::Device { lost, .. } => lost,
            Kind::File(_) => 0,
        }
    }

    /// Whether the last read came to the end.
    pub fn has_caught_up(&self) -> bool {
        self.caught_up
    }

    /// Reads what there is, without waiting.
    ///
    /// # Errors
    /// What the system says.
    pub fn read(&mut self, mut tell: impl FnMut(&str, Age)) -> io::Result<()> {
        self.caught_up = false;
        if let Kind::File(lines) = &mut self.kind {
            lines.follow(&mut self.file)?;
        }
        for _ in 0..MAX_READS {
            let count = match self.file.read(&mut self.buffer) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // Records were overwritten; the next one's number says how many.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => continue,
                Err(error) => return Err(error),
            };
            let Some(bytes) = self.buffer.get(..count).filter(|bytes| !bytes.is_empty()) else {
                self.caught_up = true;
                return Ok(());
            };
            match &mut self.kind {
                Kind::Device { next, lost } => {
                    let record = String::from_utf8_lossy(bytes);
                    let stamp = stamp(&record);
                    if let (Some((number, _)), Some(due)) = (stamp, *next) {
                        *lost += number.saturating_sub(due);
                    }
                    *next = stamp.map(|(number, _)| number + 1).or(*next);
                    let age = stamp.map_or(Age::New, |(_, at_ns)| Age::Stamped(at_ns));
                    tell(&record, age);
                }
                Kind::File(lines) => lines.take(bytes, &mut tell),
            }
        }
        Ok(())
    }
}

impl Lines {
    /// A file that was cut is read from its beginning, one that was replaced is opened anew.
    fn follow(&mut self, file: &mut File) -> io::Result<()> {
        if self.is_pipe {
            return Ok(());
        }
        if let Ok(meta) = std::fs::metadata(&self.path)
            && meta.ino() != self.inode
        {
            *file = File::open(&self.path)?;
            (self.inode, self.read, self.old) = (meta.ino(), 0, 0);
            self.rest.clear();
        } else if file.metadata()?.len() < self.read {
            file.seek(SeekFrom::Start(0))?;
            (self.read, self.old) = (0, 0);
            self.rest.clear();
        }
        Ok(())
    }

    fn take(&mut self, bytes: &[u8], tell: &mut impl FnMut(&str, Age)) {
        for &byte in bytes {
            self.read += 1;
            if byte != b'\n' {
                if self.rest.len() < MAX_LINE {
                    self.rest.push(byte);
                } else {
                    self.skipping = true;
                }
                continue;
            }
            let age = if self.read <= self.old { Age::Old } else { Age::New };
            if !std::mem::take(&mut self.skipping) {
                tell(&String::from_utf8_lossy(&self.rest), age);
            }
            self.rest.clear();
        }
    }
}

/// Number and time of a raw record, `priority,number,microseconds,..`.
fn stamp(record: &str) -> Option<(u64, u64)> {
    let (head, _) = record.split_once(';')?;
    let mut numbers = head.split(',').skip(1).map(str::parse::<u64>);
    let (number, micros) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some((number, micros.saturating_mul(1000)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps() {
        assert_eq!(stamp("4,900,77000001,-;NVRM: .."), Some((900, 77_000_001_000)));
        assert_eq!(stamp("4,900,77,-,caller=T1;x"), Some((900, 77_000)));
        for bad in ["", ";", "NVRM: a;b", "4,x,1,-;y", "4,1;y"] {
            assert_eq!(stamp(bad), None, "{bad}");
        }
    }
}
