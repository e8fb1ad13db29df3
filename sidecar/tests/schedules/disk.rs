//! The disk under the journal: a real file whose room, truncation and memory fail when told to.

use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use paceline_sidecar::aggregator::journal::Disk;

/// How the disk is.
#[derive(Debug, Default)]
pub struct Health {
    /// Bytes of room; `None`: plenty.
    pub room: Option<usize>,
    /// What was half written cannot be cut off.
    pub keeps_halves: bool,
    /// What a loss of power leaves at least, bytes.
    pub synced: u64,
    /// Snapshots that were to be put on it.
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
        // Of a file that was just begun nothing is on the disk.
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

    /// Of the snapshots some come too late: their aggregator was killed before.
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
