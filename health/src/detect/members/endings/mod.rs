//! Determines why the job ended. Of the reports of processes and nodes about their end, the first one that is a cause
//! and no mere consequence is chosen.
//!
//! Reports have the order of the journal. Two nodes' reports may be swapped by a second, so kinds that another rank
//! causes (a lost peer, a collective timeout) count only if there is no other report.

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

/// Maximum number of reports kept, because thousands of ranks report the same.
const MOST: usize = 64;
/// Maximum number of these reports that the report of the job lists.
const MOST_TOLD: usize = 8;
/// A hang that was over for this long before the end is not the reason for the end.
const HUNG_S: f64 = 60.0;
/// 128 + SIGABRT. NCCL's watchdog ends a process with it, without a Python exception
/// (<https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html>: TORCH_NCCL_ASYNC_ERROR_HANDLING).
const ABORTED: i32 = 134;
/// 128 + SIGKILL.
const KILLED: i32 = 137;
/// 128 + SIGINT, SIGKILL, SIGTERM. A command that is ended from outside has one of these codes.
const ENDED: [i32; 3] = [130, 137, 143];

/// The reports from which the reason for the end is determined.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Endings {
    troubles: Vec<(NodeId, Trouble)>,
    exits: Vec<Exited>,
    /// Ranks whose process is gone although they have not detached.
    gone: Vec<Gone>,
    /// Ranks that have detached, in the order in which they did.
    left: Vec<Left>,
    /// Number of signs so far that the job, or one of its ranks, ends abnormally.
    signs: u64,
}

/// A command that ended.
#[derive(Debug, Serialize, Deserialize)]
struct Exited {
    node: NodeId,
    code: i32,
    /// Number of troubles reported before.
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
            // A rank that attaches was started again, so it is no longer gone.
            Event::Attach(attach) => {
                self.gone.retain(|gone| gone.rank != attach.rank);
                self.left.retain(|left| left.rank != attach.rank);
            }
            _ => {}
        }
    }

    /// Returns true if this kind may be stored. Thousands of ranks may report a lost peer and then an exit code; these
    /// must leave room for the exception of the lost rank, which may arrive later.
    fn has_room(&self, kind: TroubleKind) -> bool {
        let most = match kind {
            TroubleKind::PeerLost | TroubleKind::CollectiveTimeout => MOST / 2,
            TroubleKind::Exit | TroubleKind::LauncherStop => MOST / 4 * 3,
            _ => MOST,
        };
        self.troubles.len() < most
    }

    /// Returns the number of signs of an abnormal end so far. It never decreases.
    pub fn signs(&self) -> u64 {
        self.signs
    }

    /// Starts over for a new group of ranks, because the job survived the end of the old one. Only what the scheduler
    /// reported for nodes that are still there is kept.
    pub fn survived(&mut self) {
        let exits = std::mem::take(&mut self.exits);
        self.troubles.retain(|(node, trouble)| {
            let of_scheduler = trouble.kind == TroubleKind::Signal || is_schedulers(trouble.kind);
            of_scheduler && !exits.iter().any(|exit| exit.node == *node)
        });
        self.gone.clear();
        self.left.clear();
    }

    /// Returns the rank whose process was gone without an error, if peers report only that they lost a rank.
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

    /// Returns why the job ended, or `None` if some node continues. `open` lists the nodes whose command has not ended,
    /// as far as is known, each with true if it is unreachable.
    pub fn judge(&self, open: &[(NodeId, bool)]) -> Option<Ending> {
        // Without our launcher there are no exit codes, and only troubles show that the job has ended.
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
            // The commands ended normally, but some of them because they were asked to.
            (None, Some(found)) if is_told && is_asked(&found) => Some(Ending {
                code: Some(0),
                ..found
            }),
            // All commands ended normally. A wrapper may have exited with zero despite its ranks' reports.
            (None, _) if is_told => Some(Ending::success()),
            (_, Some(mut found)) => {
                let own = self
                    .exits
                    .iter()
                    .find(|exit| Some(&exit.node) == found.node.as_ref());
                let command = own.or(failed).map(|exit| exit.code);
                // The command that started the ranks may have an exit code of its own, which is not a rank's.
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

    /// Returns what came first: a rank that ended on its own, or a signal from outside, with its sender.
    fn asked(&self) -> Option<Ending> {
        let is_first = |index: usize, trouble: &Trouble| match trouble.kind {
            TroubleKind::Signal | TroubleKind::Error | TroubleKind::CollectiveMismatch => true,
            // An abort does not count, because it usually comes from a watchdog and is caused by another rank.
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
            // If one command fails, srun and mpirun stop the others, so the failure is the reason and not the signal.
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
        // Prefer the exception to the exit code, which may arrive before it.
        let spoken = |rank| {
            let mut others = self.troubles.iter();
            others.find(|(_, other)| other.rank == Some(rank) && other.kind != TroubleKind::Exit)
        };
        let (node, trouble) = match trouble.rank.and_then(spoken) {
            Some((node, spoken)) if trouble.kind == TroubleKind::Exit => (node, spoken),
            _ => (node, trouble),
        };
        let mut ending = of_trouble(node, trouble);
        // The output of a library that aborts names no rank. The launcher reports which rank aborted there.
        let mut others = self.troubles.iter();
        let aborted = others.find(|(on, other)| on == node && other.code == Some(ABORTED));
        if let Some((_, aborted)) =
            aborted.filter(|_| ending.rank.is_none() && trouble.kind != TroubleKind::Signal)
        {
            (ending.rank, ending.code) = (aborted.rank, aborted.code);
        }
        Some(ending)
    }

    /// Returns a rank that ended normally while the others continued and then lost it.
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

    /// Returns the exit code of a rank's own process, if it is known.
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

    /// Returns a lack of memory. Its process reports nothing, or reports later than the ranks that it takes down.
    fn memory(&self) -> Option<Ending> {
        [
            TroubleKind::OomKill,
            TroubleKind::GpuMemory,
            TroubleKind::HostMemory,
        ]
        .into_iter()
        .find_map(|wanted| self.of_words(|kind| kind == wanted))
        .map(|mut ending| {
            // The kernel does not report which rank it killed, but the launcher does.
            let killed = self.troubles.iter().find(|(node, trouble)| {
                Some(node) == ending.node.as_ref() && trouble.code == Some(KILLED) && trouble.rank.is_some()
            });
            if let Some((_, trouble)) = killed.filter(|_| ending.rank.is_none()) {
                (ending.rank, ending.code) = (trouble.rank, trouble.code);
            }
            ending
        })
    }

    /// Returns the first trouble of these kinds.
    fn of_words(&self, is_meant: impl Fn(TroubleKind) -> bool) -> Option<Ending> {
        let (node, trouble) = self.troubles.iter().find(|(_, trouble)| is_meant(trouble.kind))?;
        Some(of_trouble(node, trouble))
    }

    /// Returns the ending that the exit code alone shows, with the rank that was gone first.
    fn by_code(&self, node: &NodeId, code: i32) -> Ending {
        let mut ending = Ending::of_code(node, code);
        if let Some(gone) = self.silent() {
            (ending.node, ending.rank) = (Some(gone.node.clone()), Some(gone.rank));
        }
        ending
    }
}

/// Returns the ending that a trouble shows.
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

/// Returns true if this is a scheduler's reason for a signal that it sent.
fn is_schedulers(kind: TroubleKind) -> bool {
    use TroubleKind::{Cancelled, NodeFailed, Preempted, Requeued, TimeLimit};
    matches!(kind, Cancelled | NodeFailed | Preempted | Requeued | TimeLimit)
}

/// Returns true if the job was asked to end. It may then have ended normally.
fn is_asked(ending: &Ending) -> bool {
    ending.reason == Reason::Stopped || ending.kind.is_some_and(is_schedulers)
}

/// Returns an ending that names the first of the lost nodes and the number of the others.
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

/// Adds to an ending the rank for which a collective waited, if the detector had named it. If a watchdog aborted, which
/// reports nothing, the hang itself becomes the reason.
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
        // The job was ended from outside while it stood still because of a rank. That rank is the reason.
        Some(hang) if is_ended(&ending) => Ending {
            rank: None,
            missing: (hang.finding == Finding::RankSilent).then(|| hang.subject.clone()),
            ..ending
        },
        _ => ending,
    }
}

/// Returns true if the job was ended from outside, as far as is known.
fn is_ended(ending: &Ending) -> bool {
    use Reason::{Cancelled, Killed, Stopped, TimeLimit};
    matches!(ending.reason, Killed | Stopped | Cancelled | TimeLimit)
}

#[cfg(test)]
#[path = "endings_tests.rs"]
mod tests;
