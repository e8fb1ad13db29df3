//! Reads records from `/dev/kmsg`, one per read, or lines from a file that may grow, be truncated or be replaced.

use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Size of the read buffer. The kernel returns only whole records, and rejects a buffer that is too small for one.
const BUFFER: usize = 16 << 10;
/// Maximum records read in one poll. The rest is read in the next poll.
const MAX_RECORDS: usize = 4096;
/// Maximum pieces of a file read in one poll, 1 MiB together. Existing content may be gigabytes, and the polling thread
/// has other work.
const MAX_PIECES: usize = (1 << 20) / BUFFER;
/// Maximum length of a line from a file.
const MAX_LINE: usize = 8 << 10;

/// Whether a record was written before or after monitoring started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// Written before monitoring started.
    Old,
    /// Written after monitoring started.
    New,
}

/// Why a log cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file does not exist.
    #[error("no such file")]
    Missing,
    /// This user has no permission to read it.
    #[error(
        "{0}; the kernel shows its log to root, or to all with kernel.dmesg_restrict=0 (in a container: to those it is mounted for)"
    )]
    Denied(io::Error),
    /// Opening failed for another reason.
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

/// A log. After an error it can be reopened; reading then continues where it stopped.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    file: Option<File>,
    kind: Kind,
    buffer: Vec<u8>,
    caught_up: bool,
}

#[derive(Debug)]
enum Kind {
    Device(Records),
    File(Lines),
}

/// Read position in a device, which returns one record per read and numbers them.
#[derive(Debug)]
struct Records {
    next: Option<u64>,
    lost: u64,
    /// Set until the end is reached for the first time: all records up to there are old. (Timestamps do not show this,
    /// because they come from a separate kernel clock that is not adjusted and that programs cannot read.)
    old: bool,
}

/// Read position in a file.
#[derive(Debug)]
struct Lines {
    path: PathBuf,
    /// Device and inode of the file.
    identity: (u64, u64),
    read: u64,
    /// Content before this offset was written before monitoring started.
    old: u64,
    rest: Vec<u8>,
    /// Set while the rest of an overlong line is skipped.
    skipping: bool,
    /// Set if the path leads to another file now. The open file is read to its end once more before it is closed.
    replaced: bool,
    is_pipe: bool,
}

fn open(path: &Path) -> io::Result<File> {
    let no_wait = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    File::options().read(true).custom_flags(no_wait).open(path)
}

impl Log {
    /// Opens a log. `existing` is the age of a file's current content. A device's current records are always old.
    pub fn open(path: &Path, existing: Age) -> Result<Log, OpenError> {
        let file = open(path)?;
        let meta = file.metadata()?;
        let kind = if meta.file_type().is_char_device() {
            Kind::Device(Records {
                next: None,
                lost: 0,
                old: true,
            })
        } else {
            Kind::File(Lines {
                path: path.to_owned(),
                identity: identity(&meta),
                read: 0,
                old: if existing == Age::Old { meta.len() } else { 0 },
                rest: Vec::new(),
                skipping: false,
                replaced: false,
                is_pipe: meta.file_type().is_fifo(),
            })
        };
        Ok(Log {
            path: path.to_owned(),
            file: Some(file),
            kind,
            buffer: vec![0; BUFFER],
            caught_up: false,
        })
    }

    /// Returns true if the log is open. An error closes it.
    pub fn is_open(&self) -> bool {
        self.file.is_some()
    }

    /// Reopens the log, without reading anything twice.
    pub fn reopen(&mut self) -> Result<(), OpenError> {
        let mut file = open(&self.path)?;
        let meta = file.metadata()?;
        match &mut self.kind {
            Kind::Device(_) if meta.file_type().is_char_device() => {}
            Kind::File(lines) if !meta.file_type().is_char_device() => lines.resume(&mut file, &meta)?,
            _ => *self = Log::open(&self.path, Age::New)?,
        }
        self.file = Some(file);
        Ok(())
    }

    /// Returns the number of records that were overwritten before they were read.
    pub fn lost(&self) -> u64 {
        match &self.kind {
            Kind::Device(records) => records.lost,
            Kind::File(_) => 0,
        }
    }

    /// Returns true if the last read reached the end.
    pub fn has_caught_up(&self) -> bool {
        self.caught_up
    }

    /// Reads available records without waiting. An error closes the log.
    ///
    /// # Errors
    /// If reading fails.
    pub fn read(&mut self, mut tell: impl FnMut(&str, Age)) -> io::Result<()> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        let read = match &mut self.kind {
            Kind::Device(records) => records.read(file, &mut self.buffer, &mut tell),
            Kind::File(lines) => lines.read(file, &mut self.buffer, &mut tell),
        };
        self.caught_up = matches!(read, Ok(true));
        if read.is_err() {
            self.file = None;
        }
        read.map(|_| ())
    }
}

/// Reads once. Returns `None` at the end.
fn piece<'a>(from: &mut impl Read, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
    let count = loop {
        match from.read(buffer) {
            Ok(count) => break count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break 0,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    };
    Ok(buffer.get(..count).filter(|bytes| !bytes.is_empty()))
}

impl Records {
    /// Reads records. Returns true if the end was reached.
    fn read(
        &mut self,
        from: &mut impl Read,
        buffer: &mut [u8],
        tell: &mut impl FnMut(&str, Age),
    ) -> io::Result<bool> {
        for _ in 0..MAX_RECORDS {
            match piece(from, buffer) {
                Ok(Some(bytes)) => self.take(&String::from_utf8_lossy(bytes), tell),
                Ok(None) => {
                    self.old = false;
                    return Ok(true);
                }
                // Some records were overwritten. The number of the next record shows how many.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    fn take(&mut self, record: &str, tell: &mut impl FnMut(&str, Age)) {
        if let Some(number) = number(record) {
            let due = self.next.unwrap_or(number);
            if number < due {
                return; // read before the log was reopened
            }
            self.lost += number - due;
            self.next = Some(number + 1);
        }
        tell(record, if self.old { Age::Old } else { Age::New });
    }
}

fn identity(meta: &Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

impl Lines {
    /// Reads lines. Returns true if the end was reached.
    fn read(
        &mut self,
        file: &mut File,
        buffer: &mut [u8],
        tell: &mut impl FnMut(&str, Age),
    ) -> io::Result<bool> {
        for _ in 0..MAX_PIECES {
            match piece(file, buffer)? {
                Some(bytes) => self.take(bytes, tell),
                None if self.follow(file, tell)? => {}
                None => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Called at the end of the file. Returns true if there is more to read because the file was truncated or replaced.
    fn follow(&mut self, file: &mut File, tell: &mut impl FnMut(&str, Age)) -> io::Result<bool> {
        if self.is_pipe {
            return Ok(false);
        }
        if file.metadata()?.len() < self.read {
            file.seek(SeekFrom::Start(0))?;
            self.begin(self.identity);
            return Ok(true);
        }
        // Do not switch to an empty new file, because the writer may still use the old one.
        let other = std::fs::metadata(&self.path)
            .is_ok_and(|meta| identity(&meta) != self.identity && (meta.len() > 0 || !meta.is_file()));
        if !other {
            return Ok(false);
        }
        if std::mem::replace(&mut self.replaced, true) {
            *file = open(&self.path)?;
            if !self.rest.is_empty() {
                // Nothing will complete the last line of the old file, so take it as it is.
                self.take(b"\n", tell);
            }
            self.begin(identity(&file.metadata()?));
        }
        Ok(true)
    }

    /// Positions a reopened file after the part that was already read.
    fn resume(&mut self, file: &mut File, meta: &Metadata) -> io::Result<()> {
        if self.is_pipe {
            return Ok(());
        }
        if identity(meta) == self.identity && meta.len() >= self.read {
            file.seek(SeekFrom::Start(self.read))?;
        } else {
            self.begin(identity(meta));
        }
        Ok(())
    }

    /// Starts reading a new file, all of whose content is new.
    fn begin(&mut self, identity: (u64, u64)) {
        self.identity = identity;
        (self.read, self.old, self.skipping, self.replaced) = (0, 0, false, false);
        self.rest.clear();
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

/// Returns the number of a raw record, `priority,number,microseconds,..`.
fn number(record: &str) -> Option<u64> {
    let (head, _) = record.split_once(';')?;
    head.split(',').nth(1)?.parse().ok()
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
