//! A node's hand: it does what an order says, once.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use super::order::{self, Order, What};
use crate::sink::write_whole;
use crate::source::trainers::Trainers;
use crate::warn;

/// Where launchers find that the command will be ended, in the ring directory.
const STOP: &str = "stop.json";

/// See [`What::Stop`]: what the launchers of a node read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// Between SIGTERM and SIGKILL, milliseconds.
    pub grace_ms: u64,
    /// On whose behalf.
    pub mark: String,
}

impl Stop {
    /// Whether the command will be ended.
    pub fn look(ring_dir: &Path) -> Option<Stop> {
        serde_json::from_slice(&fs::read(ring_dir.join(STOP)).ok()?).ok()
    }
}

/// See the module.
#[derive(Debug)]
pub struct Hand {
    ring_dir: PathBuf,
    trainers: Trainers,
    /// The last order that was done.
    done: u64,
}

impl Hand {
    /// For the trainers of a ring directory.
    pub fn new(ring_dir: PathBuf, trainers: Trainers) -> Hand {
        Hand {
            ring_dir,
            trainers,
            done: 0,
        }
    }

    /// Does it, unless it did so before.
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

    /// Trainers alone: torchrun, a shell or srun would die of a signal that they do not know.
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

    /// A handle on the process, if it is one of this job: a number may be somebody else's by now, a handle not.
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
