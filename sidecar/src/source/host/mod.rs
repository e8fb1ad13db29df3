//! The host: what the ranks' processes wait for, the node as a whole, and its network ports.
//!
//! All values come from /proc, control groups and sysfs, and need no privilege. One thread reads processes and another
//! reads ports, because a network adapter with unresponsive firmware may block its reader for long. The threads publish
//! readings on the `board`, and the source sends them. A value that a kernel or device does not provide is sent as
//! unsupported, never as zero.

mod board;
mod cgroup;
pub mod files;
mod grown;
mod node;
mod pace;
mod ports;
mod pressure;
mod process;
mod processes;
mod stopped;
mod threads;
mod trainer;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use paceline_health::event::{HostSignal, Reading};

use self::board::Board;
use self::ports::Ports;
use self::processes::Processes;
use super::halt::Halt;
use super::trainers::Trainers;
use super::{Send, Source};

/// Readings by signal.
type Readings = BTreeMap<HostSignal, Reading>;

/// The source; see the module.
#[derive(Debug)]
pub struct Host {
    board: Arc<Board>,
    halt: Arc<Halt>,
}

impl Host {
    /// Starts reading the processes of `trainers` and the ports of this node; `/proc` and `/sys` are under `root`.
    pub fn new(root: &Path, trainers: Trainers) -> Host {
        let host = Host {
            board: Arc::default(),
            halt: Arc::default(),
        };
        let share = || (Arc::clone(&host.board), Arc::clone(&host.halt));
        let (board, halt) = share();
        pace::start(Processes::new(root, trainers), board, halt);
        let (board, halt) = share();
        pace::start(Ports::new(root), board, halt);
        host
    }
}

impl Source for Host {
    fn name(&self) -> &'static str {
        "host"
    }

    fn poll(&mut self, now_ns: u64, send: &mut Send<'_>) {
        self.board.poll(now_ns, send);
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Do not wait for the threads, because one of them may hang in the kernel.
        self.halt.set();
    }
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
