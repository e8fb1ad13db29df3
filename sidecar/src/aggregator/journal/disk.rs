//! The file under a journal. Storage may block for seconds (a full NFS server, a failing disk), so a separate thread
//! waits for it in place of the writer.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use rustix::fs::{FallocateFlags, fallocate};

use crate::{safe_file, warn};

/// The file operations of a journal. It is a trait so that tests can simulate a full disk.
pub trait Disk: Send + std::fmt::Debug {
    /// Appends all bytes.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Truncates the file to `length`.
    fn cut(&mut self, length: u64) -> io::Result<()>;
    /// The file's length.
    fn length(&self) -> io::Result<u64>;
    /// Asks the kernel to flush the file to storage.
    fn sync(&mut self) -> io::Result<()>;
    /// Like [`Disk::sync`], but does not wait if that may take long.
    fn sync_soon(&mut self) -> io::Result<()> {
        self.sync()
    }
    /// Opens another file on the same storage.
    fn another(&self, file: File) -> Box<dyn Disk> {
        on_disk(file)
    }
    /// Runs work that waits for storage. Returns its thread if it runs in the background.
    fn run(&mut self, work: Box<dyn FnOnce() + Send>) -> Option<JoinHandle<()>> {
        work();
        None
    }
}

/// A function that wraps an opened file in a [`Disk`].
pub type Medium<'a> = dyn FnMut(File) -> Box<dyn Disk> + 'a;

/// Returns the [`Disk`] of a regular file.
pub fn on_disk(file: File) -> Box<dyn Disk> {
    Box::new(Plain { file, syncs: None })
}

#[derive(Debug)]
struct Plain {
    file: File,
    /// The queue of the syncing thread. One entry is enough, because a queued sync covers everything written so far.
    syncs: Option<SyncSender<()>>,
}

impl Disk for Plain {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.file.set_len(length)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn run(&mut self, work: Box<dyn FnOnce() + Send>) -> Option<JoinHandle<()>> {
        let thread = thread::Builder::new().name("snapshot".into()).spawn(work);
        thread
            .inspect_err(|error| warn::once("snapshot", format_args!("a thread for snapshots: {error}")))
            .ok()
    }

    fn sync_soon(&mut self) -> io::Result<()> {
        if self.syncs.is_none() {
            let file = self.file.try_clone()?;
            let (syncs, asked) = sync_channel::<()>(1);
            thread::Builder::new()
                .name("sync".into())
                .stack_size(64 << 10)
                .spawn(move || {
                    for () in asked {
                        if let Err(error) = file.sync_data() {
                            warn::once("sync", format_args!("the run directory's disk: {error}"));
                        }
                    }
                })?;
            self.syncs = Some(syncs);
        }
        if let Some(syncs) = &self.syncs {
            let _ = syncs.try_send(());
        }
        Ok(())
    }
}

/// Creates a file that reserves this many bytes on the disk.
pub(super) fn reserve(path: &Path, bytes: u64) -> io::Result<()> {
    let file = safe_file::open_to_write(path)?;
    match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
        // Network file systems may not support this. The journal then has no reserve.
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
        Err(error) => {
            let _ = fs::remove_file(path);
            Err(error.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_cut_and_synced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let mut disk = on_disk(File::create(&path).unwrap());
        (0..100).for_each(|_| {
            disk.append(b"line\n").unwrap();
            disk.sync_soon().unwrap();
        });
        disk.cut(disk.length().unwrap() - 5).unwrap();
        disk.sync().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"line\n".repeat(99));
    }
}
