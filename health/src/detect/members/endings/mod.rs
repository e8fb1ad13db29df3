//! Why the job ended: the first cause among the reports of processes and nodes about their end, without mere
//! consequences.
//!
//! The order is that of the journal. Reports of two nodes may be swapped by a second, so kinds that another rank causes
//! (a lost peer, a collective timeout) count only if there is no other report.

mod deaths;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use self::deaths::Death;
use self::deaths::{Gone, Left};
use crate::event::{Event, Trouble, TroubleKind};
use crate::frame::Frame;
use crate::id::NodeId;
use crate::report::{self, Ending, Heard, Reason};
use crate::time::Time;
use crate::verdict::{Finding, Verdict};

/// Maximum reports kept. A job of thousands of ranks reports the same thousands of times.
const MOST: usize = 64;
/// Maximum of these in the report.
const MOST_TOLD: usize = 8;
/// A hang that was over this long before the end has nothing to do with it.
const HUNG_S: f64 = 60.0;
/// 128 + SIGABRT: how NCCL's watchdog ends a process, without a Python exception
/// (<https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html>: TORCH_NCCL_ASYNC_ERROR_HANDLING).
const ABORTED: i32 = 134;
/// 128 + SIGKILL.
const KILLED: i32 = 137;
/// 128 + SIGINT, SIGKILL, SIGTERM: codes of commands that were ended from outside.
const ENDED: [i32; 3] = [130, 137, 143];

/// Reports of ends.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Endings {
    troubles: Vec<(NodeId, Trouble)>,
    exits: Vec<Exited>,
    /// Ranks whose process is gone and that have not detached.
    gone: Vec<Gone>,
    /// Ranks that have detached, in order.
    left: Vec<Left>,
    /// Counts signs that the job, or one of its ranks, ends abnormally.
    signs: u64,
}

/// A command that ended.
#[derive(Debug, Serialize, Deserialize)]
struct Exited {
    node: NodeId,
    code: i32,
    /// Number of troubles before.
    after: usize,
}

impl Endings {
    /// Takes a frame.
    pub fn take(&mut self, at: Time, frame: &Frame) {
        match &frame.event {
            Event::Trouble(trouble) => {
                self.signs += 1;
                if self.has_room(trouble.kind) {
                    self.troubles.push((frame.node.clone(), trouble.clone()));
                }
            }
            Event::Exit(exit) if !self.exits.iter().any(|known| known.node == frame.node) => {
                self.signs += u64::from(exit.code != 0);
                self.exits.push(Exited {
                    node: frame.node.clone(),
                    code: exit.code,
                    after: self.troubles.len(),
                });
            }
            Event::Beat(beat) => self.beat(at, &frame.node, beat),
            Event::Detach(detach) => self.goodbye(&frame.node, detach),
            // A new start: a rank that died was replaced.
            Event::Attach(attach) => {
                self.gone.retain(|gone| gone.rank != attach.rank);
                self.left.retain(|left| left.rank != attach.rank);
            }
            _ => {}
        }
    }

    /// Thousands of ranks may lose a peer within a second, followed by as many exit codes: they leave room for the
    /// exception of the lost rank, which may arrive later.
    fn has_room(&self, kind: TroubleKind) -> bool {
        let most = match kind {
            TroubleKind::PeerLost | TroubleKind::CollectiveTimeout => MOST / 2,
            TroubleKind::Exit | TroubleKind::LauncherStop => MOST / 4 * 3,
            _ => MOST,
        };
        self.troubles.len() < most
    }

    /// Number of signs of an abnormal end so far; it only grows.
    pub fn signs(&self) -> u64 {
        self.signs
    }

    /// A new group of ranks started: the job survived the end of the old one, and ranks that left are not missed. What
    /// the scheduler reported for nodes that are still there remains.
    pub fn survived(&mut self) {
        let exits = std::mem::take(&mut self.exits);
        self.troubles.retain(|(node, trouble)| {
            let of_scheduler = trouble.kind == TroubleKind::Signal || is_schedulers(trouble.kind);
            of_scheduler && !exits.iter().any(|exit| exit.node == *node)
        });
        self.gone.clear();
        self.left.clear();
    }

    /// If peers only report that they lost a rank: the rank whose process was gone without an error.
    fn lost_peer(&self) -> Option<Ending> {
        let all_lost = self.troubles.iter().all(|(_, trouble)| {
            matches!(
                trouble.kind,
                TroubleKind::PeerLost | TroubleKind::LauncherStop | TroubleKind::Exit
            )
        });
        let lost_any = self
            .troubles
            .iter()
            .any(|(_, trouble)| trouble.kind == TroubleKind::PeerLost);
        let gone = self.silent().filter(|_| all_lost && lost_any)?;
        Some(Ending {
            reason: Reason::Crashed,
            node: Some(gone.node.clone()),
            rank: Some(gone.rank),
            says: Arc::from("its process ended without a message; others lost their connection to it"),
            code: None,
            ..Ending::success()
        })
    }

    /// Why it ended; `None`: some node continues. `open`: nodes whose command has not ended, as far as is known, and
    /// whether they are unreachable.
    pub fn judge(&self, open: &[(NodeId, bool)]) -> Option<Ending> {
        // There may be no exit code: without our launcher, troubles are all there is.
        let is_silent = self.exits.is_empty() && self.troubles.is_empty();
        if open.iter().any(|(_, is_lost)| !is_lost) || is_silent && open.is_empty() {
            return None;
        }
        let is_told = open.is_empty() && !self.exits.is_empty();
        let failed = self.exits.iter().find(|exit| exit.code != 0);
        let found = self
            .memory()
            .or_else(|| self.asked())
            .or_else(|| lost(open))
            .or_else(|| self.gone_early())
            .or_else(|| self.of_words(|kind| kind == TroubleKind::CollectiveTimeout))
            .or_else(|| self.lost_peer())
            .or_else(|| self.of_words(|kind| kind != TroubleKind::LauncherStop));
        let ending = match (failed, found) {
            // Whatever was reported, the commands ended normally; some of them because they were asked to.
            (None, Some(found)) if is_told && is_asked(&found) => Some(Ending {
                code: Some(0),
                ..found
            }),
            // A wrapper may exit with zero whatever its ranks reported.
            (None, _) if is_told => Some(Ending::success()),
            (_, Some(mut found)) => {
                let own = self
                    .exits
                    .iter()
                    .find(|exit| Some(&exit.node) == found.node.as_ref());
                let command = own.or(failed).map(|exit| exit.code);
                // A command that started the ranks may have an exit code of its own, which is not a rank's.
                let known = match found.rank {
                    Some(rank) => self.code_of(rank),
                    None => command,
                };
                found.code = found.code.or(known);
                Some(found)
            }
            (Some(exit), None) => Some(self.by_code(&exit.node, exit.code)),
            (None, None) => None,
        };
        ending.map(|ending| Ending {
            heard: self.heard(),
            ..ending
        })
    }

    /// Whichever came first: a rank that ended on its own, or a signal from outside, with its sender.
    fn asked(&self) -> Option<Ending> {
        let is_first = |index: usize, trouble: &Trouble| match trouble.kind {
            TroubleKind::Signal | TroubleKind::Error | TroubleKind::CollectiveMismatch => true,
            // An abort usually comes from a watchdog, because of another rank.
            TroubleKind::Exit if trouble.code != Some(ABORTED) => trouble
                .rank
                .is_some_and(|rank| self.is_own_exit(index, rank, trouble)),
            _ => false,
        };
        let mut troubles = self.troubles.iter().enumerate();
        let first = troubles
            .find(|(index, (_, trouble))| is_first(*index, trouble))?
            .0;
        let (node, trouble) = &self.troubles[first];
        if trouble.kind == TroubleKind::Signal {
            // If one command fails, srun and mpirun stop the others.
            let before = self
                .exits
                .iter()
                .find(|exit| exit.after <= first && exit.code != 0 && !ENDED.contains(&exit.code));
            if let Some(exit) = before {
                return Some(self.by_code(&exit.node, exit.code));
            }
            if let Some(ending) = self.of_words(is_schedulers) {
                return Some(Ending { node: None, ..ending });
            }
        }
        // An exit code may arrive before the exception behind it.
        let spoken = |rank| {
            let mut others = self.troubles.iter();
            others.find(|(_, other)| other.rank == Some(rank) && other.kind != TroubleKind::Exit)
        };
        let (node, trouble) = match trouble.rank.and_then(spoken) {
            Some((node, spoken)) if trouble.kind == TroubleKind::Exit => (node, spoken),
            _ => (node, trouble),
        };
        let mut ending = of_trouble(node, trouble);
        // The output of a library that aborts names no rank; the launcher reports which rank aborted there.
        let mut others = self.troubles.iter();
        let aborted = others.find(|(on, other)| on == node && other.code == Some(ABORTED));
        if let Some((_, aborted)) =
            aborted.filter(|_| ending.rank.is_none() && trouble.kind != TroubleKind::Signal)
        {
            (ending.rank, ending.code) = (aborted.rank, aborted.code);
        }
        Some(ending)
    }

    /// A rank that ended normally while the others continued, and lost it.
    fn gone_early(&self) -> Option<Ending> {
        let left = self.left_early()?;
        let says = format!(
            "it ended normally after step {} while the others continued: do all ranks run the same number of steps?",
            left.step
        );
        Some(Ending {
            reason: Reason::Error,
            node: Some(left.node.clone()),
            rank: Some(left.rank),
            code: Some(0),
            says: Arc::from(says),
            ..Ending::success()
        })
    }

    /// The exit code of a rank's own process, if it is known.
    fn code_of(&self, rank: crate::id::Rank) -> Option<i32> {
        let of_rank = self
            .troubles
            .iter()
            .filter(|(_, trouble)| trouble.rank == Some(rank));
        of_rank.filter_map(|(_, trouble)| trouble.code).next()
    }

    fn heard(&self) -> Vec<Heard> {
        let told = self.troubles.iter().take(MOST_TOLD).map(|(node, trouble)| Heard {
            node: node.clone(),
            rank: trouble.rank,
            kind: trouble.kind,
            says: Arc::from(report::headline(&trouble.says)),
        });
        told.collect()
    }

    /// A process that is out of memory reports nothing, or only after the ranks that it takes down.
    fn memory(&self) -> Option<Ending> {
        [
            TroubleKind::OomKill,
            TroubleKind::GpuMemory,
            TroubleKind::HostMemory,
        ]
        .into_iter()
        .find_map(|wanted| self.of_words(|kind| kind == wanted))
        .map(|mut ending| {
            // The kernel reports how many processes it killed, the launcher which rank was killed there.
            let killed = self.troubles.iter().find(|(node, trouble)| {
                Some(node) == ending.node.as_ref() && trouble.code == Some(KILLED) && trouble.rank.is_some()
            });
            if let Some((_, trouble)) = killed.filter(|_| ending.rank.is_none()) {
                (ending.rank, ending.code) = (trouble.rank, trouble.code);
            }
            ending
        })
    }

    /// The first trouble of these kinds.
    fn of_words(&self, is_meant: impl Fn(TroubleKind) -> bool) -> Option<Ending> {
        let (node, trouble) = self.troubles.iter().find(|(_, trouble)| is_meant(trouble.kind))?;
        Some(of_trouble(node, trouble))
    }

    /// Without any trouble: what the exit code shows, and which rank was gone first.
    fn by_code(&self, node: &NodeId, code: i32) -> Ending {
        let mut ending = Ending::of_code(node, code);
        if let Some(gone) = self.silent() {
            (ending.node, ending.rank) = (Some(gone.node.clone()), Some(gone.rank));
        }
        ending
    }
}

/// The ending that a trouble shows.
fn of_trouble(node: &NodeId, trouble: &Trouble) -> Ending {
    let reason = match trouble.kind {
        TroubleKind::Signal => Reason::Stopped,
        TroubleKind::OomKill | TroubleKind::GpuMemory | TroubleKind::HostMemory => Reason::OutOfMemory,
        TroubleKind::CollectiveTimeout => Reason::CollectiveTimeout,
        TroubleKind::Exit => trouble
            .code
            .map_or(Reason::Error, |code| Ending::of_code(node, code).reason),
        TroubleKind::PeerLost
        | TroubleKind::Error
        | TroubleKind::LauncherStop
        | TroubleKind::CollectiveMismatch => Reason::Error,
        TroubleKind::TimeLimit => Reason::TimeLimit,
        TroubleKind::Cancelled => Reason::Cancelled,
        TroubleKind::Preempted => Reason::Preempted,
        TroubleKind::Requeued => Reason::Requeued,
        TroubleKind::NodeFailed => Reason::NodeLost,
    };
    Ending {
        reason,
        node: Some(node.clone()),
        rank: trouble.rank,
        kind: Some(trouble.kind),
        says: trouble.says.clone(),
        code: trouble.code,
        ..Ending::success()
    }
}

/// A scheduler's reason for a signal that it sent.
fn is_schedulers(kind: TroubleKind) -> bool {
    use TroubleKind::{Cancelled, NodeFailed, Preempted, Requeued, TimeLimit};
    matches!(kind, Cancelled | NodeFailed | Preempted | Requeued | TimeLimit)
}

/// The job was asked to end, and may have ended normally.
fn is_asked(ending: &Ending) -> bool {
    ending.reason == Reason::Stopped || ending.kind.is_some_and(is_schedulers)
}

/// Names the first of the lost nodes, and the number of the others.
fn lost(open: &[(NodeId, bool)]) -> Option<Ending> {
    let (first, others) = open.split_first()?;
    let says = match others.len() {
        0 => "it no longer reports".to_owned(),
        others => format!("it and {others} others no longer report"),
    };
    Some(Ending {
        reason: Reason::NodeLost,
        node: Some(first.0.clone()),
        code: None,
        says: Arc::from(says),
        ..Ending::success()
    })
}

/// The same ending with the rank that a collective waited for, if the detector had named it. A watchdog that aborts
/// reports nothing: then the hang itself is the reason.
pub fn waited(ending: Ending, verdicts: &[Verdict], now_s: f64) -> Ending {
    let of = |finding| {
        let held = |verdict: &&Verdict| verdict.cleared_s.is_none_or(|at| now_s - at < HUNG_S);
        let mut named = verdicts.iter().rev().filter(held);
        named.find(|verdict| verdict.finding == finding)
    };
    let hang = of(Finding::RankSilent).or_else(|| of(Finding::JobHang));
    let is_abort = ending.reason == Reason::Crashed && ending.code == Some(ABORTED);
    match hang {
        Some(hang) if is_abort || ending.reason == Reason::CollectiveTimeout => Ending {
            reason: Reason::CollectiveTimeout,
            missing: (hang.finding == Finding::RankSilent).then(|| hang.subject.clone()),
            ..ending
        },
        // A job at a standstill was ended from outside: the reason is the rank it waited for, not the first to end.
        Some(hang) if is_ended(&ending) => Ending {
            rank: None,
            missing: (hang.finding == Finding::RankSilent).then(|| hang.subject.clone()),
            ..ending
        },
        _ => ending,
    }
}

/// The job was ended from outside, as far as is known.
fn is_ended(ending: &Ending) -> bool {
    use Reason::{Cancelled, Killed, Stopped, TimeLimit};
    matches!(ending.reason, Killed | Stopped | Cancelled | TimeLimit)
}

#[cfg(test)]
#[path = "endings_tests.rs"]
mod tests;
