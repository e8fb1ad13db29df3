//! The disk of the journal: a real file whose space, truncation and durability can be made to fail.

use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use paceline_sidecar::aggregator::journal::Disk;

/// State of the disk.
#[derive(Debug, Default)]
pub struct Health {
    /// Bytes of space; `None`: unlimited.
    pub room: Option<usize>,
    /// Partial writes cannot be truncated.
    pub keeps_halves: bool,
    /// Minimum that survives a power loss, bytes.
    pub synced: u64,
    /// Number of requested snapshots.
    pub snapshots: u64,
}

/// See [`Health`].
#[derive(Debug)]
pub struct SimDisk {
    file: File,
    health: Arc<Mutex<Health>>,
}

impl SimDisk {
    pub fn new(file: File, health: Arc<Mutex<Health>>) -> SimDisk {
        // Nothing of a new file is on the disk yet.
        if let Ok(file) = file.metadata() {
            let mut health = health.lock().unwrap();
            health.synced = health.synced.min(file.len());
        }
        SimDisk { file, health }
    }
}

impl Disk for SimDisk {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut health = self.health.lock().unwrap();
        let Some(room) = &mut health.room else {
            return self.file.write_all(bytes);
        };
        let fits = bytes.len().min(*room);
        *room -= fits;
        self.file.write_all(&bytes[..fits])?;
        if fits < bytes.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn cut(&mut self, length: u64) -> io::Result<()> {
        if self.health.lock().unwrap().keeps_halves {
            return Err(io::ErrorKind::Other.into());
        }
        self.file.set_len(length)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn another(&self, file: File) -> Box<dyn Disk> {
        Box::new(SimDisk::new(file, self.health.clone()))
    }

    /// Some snapshots are too late: their aggregator was killed before.
    fn run(&mut self, work: Box<dyn FnOnce() + Send>) -> Option<JoinHandle<()>> {
        let mut health = self.health.lock().unwrap();
        health.snapshots += 1;
        let is_late = health.snapshots % 4 == 3;
        drop(health);
        if !is_late {
            work();
        }
        None
    }

    fn sync(&mut self) -> io::Result<()> {
        self.health.lock().unwrap().synced = self.file.metadata()?.len();
        Ok(())
    }
}
