//! Why the job ended: what came first of what processes and nodes said of their end, with what is only a consequence left
//! out.
//!
//! Order is that of the journal. Two nodes' words may be swapped by a second, so kinds that others cause (a peer that went
//! away, a collective that waited in vain) count only when nothing else was said.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::event::{Beat, Event, Trouble, TroubleKind};
use crate::frame::Frame;
use crate::id::{NodeId, Rank};
use crate::report::{self, Ending, Heard, Reason};
use crate::verdict::{Finding, Verdict};

/// Words that are kept. A job of thousands of ranks says the same thousands of times.
const MOST: usize = 64;
/// Of these, in the report.
const MOST_TOLD: usize = 8;
/// A hang that was over so long before the end has nothing to do with it.
const HUNG_S: f64 = 60.0;
/// 128 + SIGABRT: the end that NCCL's watchdog brings about, without an exception of Python's
/// (<https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html>: TORCH_NCCL_ASYNC_ERROR_HANDLING).
const ABORTED: i32 = 134;
/// 128 + SIGINT, SIGKILL, SIGTERM: codes of commands that somebody else ended.
const ENDED: [i32; 3] = [130, 137, 143];

/// What was heard of ends.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Endings {
    troubles: Vec<(NodeId, Trouble)>,
    exits: Vec<Exited>,
    /// Ranks whose process was gone without a goodbye, and since when each had done nothing.
    died: Vec<Died>,
}

/// A rank whose process is gone.
#[derive(Debug, Serialize, Deserialize)]
struct Died {
    node: NodeId,
    rank: Rank,
    idle_ns: u64,
}

/// A command that ended.
#[derive(Debug, Serialize, Deserialize)]
struct Exited {
    node: NodeId,
    code: i32,
    /// How much had been said before.
    after: usize,
}

impl Endings {
    /// Takes note of a frame.
    pub fn take(&mut self, frame: &Frame) {
        match &frame.event {
            Event::Trouble(trouble) if self.troubles.len() < MOST => {
                self.troubles.push((frame.node.clone(), trouble.clone()));
            }
            Event::Exit(exit) if !self.exits.iter().any(|known| known.node == frame.node) => {
                self.exits.push(Exited {
                    node: frame.node.clone(),
                    code: exit.code,
                    after: self.troubles.len(),
                });
            }
            Event::Beat(beat) => self.beat(&frame.node, beat),
            // A new beginning: whoever died was replaced.
            Event::Attach(attach) => self.died.retain(|died| died.rank != attach.rank),
            _ => {}
        }
    }

    /// A new group of ranks has begun: whatever the one before it died of was survived, and who left meanwhile is not
    /// missed. What the scheduler wants of nodes that are still there stands.
    pub fn survived(&mut self) {
        let exits = std::mem::take(&mut self.exits);
        self.troubles.retain(|(node, trouble)| {
            let of_scheduler = trouble.kind == TroubleKind::Signal || is_schedulers(trouble.kind);
            of_scheduler && !exits.iter().any(|exit| exit.node == *node)
        });
        self.died.clear();
    }

    fn beat(&mut self, node: &NodeId, beat: &Beat) {
        // Who dies later dies of it: the first beat that knows of any knows the one.
        if self.died.is_empty() {
            let gone = beat.ranks.iter().filter(|pulse| !pulse.alive).take(MOST);
            self.died.extend(gone.map(|pulse| Died {
                node: node.clone(),
                rank: pulse.rank,
                idle_ns: pulse.idle_ns,
            }));
        }
    }

    /// Who was gone first and said nothing: of those that one beat missed, whoever did nothing for longest.
    fn gone(&self) -> Option<&Died> {
        let spoke = |rank| {
            self.troubles
                .iter()
                .any(|(_, trouble)| trouble.rank == Some(rank))
        };
        let silent = self.died.iter().filter(|died| !spoke(died.rank));
        silent.max_by_key(|died| died.idle_ns)
    }

    /// All that was said is that a peer went away: whose process was gone without a word.
    fn lost_peer(&self) -> Option<Ending> {
        let all_lost = self
            .troubles
            .iter()
            .all(|(_, trouble)| trouble.kind == TroubleKind::PeerLost);
        let gone = self.gone().filter(|_| all_lost && !self.troubles.is_empty())?;
        Some(Ending {
            reason: Reason::Crashed,
            node: Some(gone.node.clone()),
            rank: Some(gone.rank),
            says: Arc::from("its process was gone, and said nothing; others lost their connection to it"),
            code: None,
            ..Ending::success()
        })
    }

    /// Why it ended; `None`: some node goes on. `open`: nodes whose command has not ended, as far as is known, and
    /// whether nothing is heard of them any more.
    pub fn judge(&self, open: &[(NodeId, bool)]) -> Option<Ending> {
        // Nobody may have told a code: where no launcher of ours is, words are all there is.
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
            .or_else(|| self.of_words(|kind| kind == TroubleKind::CollectiveTimeout))
            .or_else(|| self.lost_peer())
            .or_else(|| self.of_words(|_| true));
        let ending = match (failed, found) {
            // Whatever was said, the commands ended as they should; some of them because they were asked to.
            (None, Some(found)) if is_told && is_asked(&found) => Some(Ending {
                code: Some(0),
                ..found
            }),
            (None, _) if is_told => return Some(Ending::success()),
            (_, Some(mut found)) => {
                let own = self
                    .exits
                    .iter()
                    .find(|exit| Some(&exit.node) == found.node.as_ref());
                found.code = found.code.or(own.or(failed).map(|exit| exit.code));
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

    /// Whichever came first of an error and a signal from outside; of the signal, who sent it.
    fn asked(&self) -> Option<Ending> {
        let is_first = |kind| matches!(kind, TroubleKind::Signal | TroubleKind::Error);
        let first = self
            .troubles
            .iter()
            .position(|(_, trouble)| is_first(trouble.kind))?;
        if self.troubles[first].1.kind == TroubleKind::Signal {
            // Where one command fails, srun and mpirun end the others.
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
        self.of_words(is_first)
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

    /// What is short of memory tells nothing, or only after those that it takes along.
    fn memory(&self) -> Option<Ending> {
        [
            TroubleKind::OomKill,
            TroubleKind::GpuMemory,
            TroubleKind::HostMemory,
        ]
        .into_iter()
        .find_map(|wanted| self.of_words(|kind| kind == wanted))
    }

    /// The first of these kinds that was said.
    fn of_words(&self, is_meant: impl Fn(TroubleKind) -> bool) -> Option<Ending> {
        let (node, trouble) = self.troubles.iter().find(|(_, trouble)| is_meant(trouble.kind))?;
        let reason = match trouble.kind {
            TroubleKind::Signal => Reason::Stopped,
            TroubleKind::OomKill | TroubleKind::GpuMemory | TroubleKind::HostMemory => Reason::OutOfMemory,
            TroubleKind::CollectiveTimeout => Reason::CollectiveTimeout,
            TroubleKind::PeerLost | TroubleKind::Error => Reason::Error,
            TroubleKind::TimeLimit => Reason::TimeLimit,
            TroubleKind::Cancelled => Reason::Cancelled,
            TroubleKind::Preempted => Reason::Preempted,
            TroubleKind::Requeued => Reason::Requeued,
            TroubleKind::NodeFailed => Reason::NodeLost,
        };
        Some(Ending {
            reason,
            node: Some(node.clone()),
            rank: trouble.rank,
            kind: Some(trouble.kind),
            says: trouble.says.clone(),
            code: None,
            ..Ending::success()
        })
    }

    /// Nobody said anything: what the code tells, and who was gone first.
    fn by_code(&self, node: &NodeId, code: i32) -> Ending {
        let mut ending = Ending::of_code(node, code);
        if let Some(gone) = self.gone() {
            (ending.node, ending.rank) = (Some(gone.node.clone()), Some(gone.rank));
        }
        ending
    }
}

/// What the scheduler says of a signal that it has sent.
fn is_schedulers(kind: TroubleKind) -> bool {
    use TroubleKind::{Cancelled, NodeFailed, Preempted, Requeued, TimeLimit};
    matches!(kind, Cancelled | NodeFailed | Preempted | Requeued | TimeLimit)
}

/// The job was asked to end, and may have done so in order.
fn is_asked(ending: &Ending) -> bool {
    ending.reason == Reason::Stopped || ending.kind.is_some_and(is_schedulers)
}

/// Of many the first is named, and how many others there are.
fn lost(open: &[(NodeId, bool)]) -> Option<Ending> {
    let (first, others) = open.split_first()?;
    let says = match others.len() {
        0 => "nothing is heard of it any more".to_owned(),
        others => format!("nothing is heard of it and {others} others any more"),
    };
    Some(Ending {
        reason: Reason::NodeLost,
        node: Some(first.0.clone()),
        code: None,
        says: Arc::from(says),
        ..Ending::success()
    })
}

/// The same end with those for whom a collective waited, if the detector had named them. A watchdog that aborts says
/// nothing: then the hang itself is what it was.
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
        _ => ending,
    }
}

#[cfg(test)]
#[path = "endings_tests.rs"]
mod tests;
