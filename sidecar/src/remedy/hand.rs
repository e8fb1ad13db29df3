//! Executes orders on a node. Each order is executed only once.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use super::order::{self, Order, What};
use crate::sink::write_whole;
use crate::source::trainers::Trainers;
use crate::warn;

/// Name of a file in the ring directory. It informs launchers that the command will be stopped.
const STOP: &str = "stop.json";

/// The contents of that file, which the launchers of a node read (see [`What::Stop`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// Time between SIGTERM and SIGKILL, milliseconds.
    pub grace_ms: u64,
    /// The decision's mark.
    pub mark: String,
}

impl Stop {
    /// Returns the pending stop, if there is one.
    pub fn look(ring_dir: &Path) -> Option<Stop> {
        serde_json::from_slice(&fs::read(ring_dir.join(STOP)).ok()?).ok()
    }
}

/// Executes orders (see the module documentation).
#[derive(Debug)]
pub struct Hand {
    ring_dir: PathBuf,
    trainers: Trainers,
    /// The number of the last order that was executed.
    done: u64,
}

impl Hand {
    /// Creates it for the trainers of a ring directory.
    pub fn new(ring_dir: PathBuf, trainers: Trainers) -> Hand {
        Hand {
            ring_dir,
            trainers,
            done: 0,
        }
    }

    /// Executes an order, unless it was already executed.
    pub fn take(&mut self, order: &Order) {
        if order.number <= self.done {
            return;
        }
        self.done = order.number;
        match &order.what {
            What::Signal { name } => self.signal(name, &order.mark),
            What::Stop { grace_ms } => {
                let stop = Stop {
                    grace_ms: *grace_ms,
                    mark: order.mark.clone(),
                };
                let bytes = serde_json::to_vec(&stop).unwrap_or_default();
                match write_whole(&self.ring_dir.join(STOP), &bytes) {
                    Ok(()) => warn::answer(format_args!("{}: the command will be ended", order.mark)),
                    Err(error) => {
                        warn::answer(format_args!(
                            "{}: the command cannot be ended: {error}",
                            order.mark
                        ));
                    }
                }
            }
        }
    }

    /// Sends a signal, but only to trainers. Without a handler, a signal would kill torchrun, a shell or srun.
    fn signal(&self, name: &str, mark: &str) {
        let Some(signal) = order::signal(name) else {
            return warn::answer(format_args!("{mark}: no signal is called {name}"));
        };
        let mut sent = Vec::new();
        for (rank, pid) in self.trainers.now() {
            if let Some(trainer) = self.trainer(pid)
                && pidfd_send_signal(&trainer, signal).is_ok()
            {
                sent.push(rank.to_string());
            }
        }
        if sent.is_empty() {
            warn::answer(format_args!("{mark}: no trainer of this node can be signalled"));
        } else {
            let ranks = sent.join(", ");
            warn::answer(format_args!("{mark}: SIG{name} sent to rank {ranks}"));
        }
    }

    /// Returns a handle on the process, if it belongs to this job. A handle is needed because a process ID may have
    /// been reused meanwhile.
    fn trainer(&self, pid: u32) -> Option<rustix::fd::OwnedFd> {
        let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
        let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())).ok()?;
        let mut wanted = b"PACELINE_RING_DIR=".to_vec();
        wanted.extend(self.ring_dir.as_os_str().as_bytes());
        let is_ours = environment
            .split(|byte| *byte == 0)
            .any(|variable| variable == wanted);
        is_ours.then_some(handle)
    }
}
