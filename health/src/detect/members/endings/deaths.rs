//! Finds the rank that died first on its own. A rank that lost a peer, was stopped by its launcher or timed out waiting
//! died because another rank ended, so it is not the one to report.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{ABORTED, ENDED, Endings, is_schedulers};
use crate::event::{Beat, Detach, Phase, Trouble, TroubleKind};
use crate::id::{NodeId, Rank};
use crate::time::Time;

/// How long to wait, in nanoseconds, before a process that is gone without an error counts as dead. Its launcher may
/// have stopped it, and reports that within this time.
const GRACE_NS: u64 = 700_000_000;
/// A peer that has been waiting for this long, in nanoseconds, is waiting for another rank.
const WAITS_NS: u64 = 500_000_000;
/// Maximum number of goodbyes kept. Only the first one is used.
const MOST_LEFT: usize = 8;

/// A rank that died, with the details.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Death {
    pub node: NodeId,
    pub rank: Rank,
    /// Exit code. It is 128 + n for signal n.
    pub code: Option<i32>,
    /// The exception, or another text if there is none.
    pub says: Arc<str>,
}

impl Death {
    /// Creates the death of a process that is gone, without further details.
    pub fn quiet(node: NodeId, rank: Rank) -> Death {
        Death {
            node,
            rank,
            code: None,
            says: Arc::from("its process ended without a recorded exception or exit code"),
        }
    }
}

/// A rank whose process is gone although the rank has not detached.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Gone {
    pub node: NodeId,
    pub rank: Rank,
    pub idle_ns: u64,
    /// When it was noticed that the process is gone.
    at: Time,
    step: u64,
    /// True if live peers wait for another rank, or have continued without this one.
    is_missed: bool,
}

/// A rank that has detached.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Left {
    pub node: NodeId,
    pub rank: Rank,
    pub step: u64,
    /// Number of troubles reported before.
    pub after: usize,
}

impl Endings {
    pub(super) fn beat(&mut self, at: Time, node: &NodeId, beat: &Beat) {
        let lives = |rank| beat.ranks.iter().any(|pulse| pulse.alive && pulse.rank == rank);
        self.gone.retain(|gone| !lives(gone.rank));
        // The first beat with a dead rank contains the first death. Later deaths are ignored because they are
        // consequences of it.
        if self.gone.is_empty() {
            let gone = beat.ranks.iter().filter(|pulse| !pulse.alive).take(super::MOST);
            self.gone.extend(gone.map(|pulse| Gone {
                node: node.clone(),
                rank: pulse.rank,
                idle_ns: pulse.idle_ns,
                at,
                step: pulse.step,
                is_missed: false,
            }));
            self.signs += u64::from(!self.gone.is_empty());
            return;
        }
        for gone in self.gone.iter_mut().filter(|gone| !gone.is_missed) {
            let misses = |pulse: &crate::event::Pulse| {
                let waits = pulse.phase == Phase::Wait && pulse.idle_ns >= WAITS_NS;
                pulse.alive && pulse.rank != gone.rank && (waits || pulse.step > gone.step.saturating_add(1))
            };
            gone.is_missed = beat.ranks.iter().any(misses);
        }
    }

    pub(super) fn goodbye(&mut self, node: &NodeId, detach: &Detach) {
        if self.left.len() < MOST_LEFT {
            self.left.push(Left {
                node: node.clone(),
                rank: detach.rank,
                step: detach.step,
                after: self.troubles.len(),
            });
        }
    }

    /// Returns the rank that died first on its own while others lived, if there is one. If `stands` is true, the job
    /// was already found at a standstill, and a rank that ends then ends because of that.
    pub fn first_death(&self, now: Time, stands: bool) -> Option<Death> {
        let spoken = self.spoken_death(stands);
        // A process that is gone without an error does not count during a standstill, because an orderly end of the job
        // also begins with a signal and ends processes without an error.
        spoken.or_else(|| self.silent_death(now).filter(|_| !stands))
    }

    /// Returns true if there is still a sign that the rank has ended.
    pub fn speaks_of(&self, rank: Rank) -> bool {
        self.has_trouble(rank) || self.gone.iter().any(|gone| gone.rank == rank)
    }

    /// Returns true if the rank or its launcher reported an error.
    pub fn has_trouble(&self, rank: Rank) -> bool {
        self.troubles
            .iter()
            .any(|(_, trouble)| trouble.rank == Some(rank))
    }

    /// Drops the troubles of ranks that have kept training since, because their exceptions did not end them.
    pub fn forget(&mut self, lives: impl Fn(Rank) -> bool) {
        let is_kept = |(_, trouble): &(NodeId, Trouble)| !trouble.rank.is_some_and(&lives);
        // Exits and goodbyes store the number of troubles before them, so these numbers must be reduced too.
        let mut kept: Vec<usize> = vec![0];
        kept.extend(self.troubles.iter().scan(0, |count, trouble| {
            *count += usize::from(is_kept(trouble));
            Some(*count)
        }));
        let exits = self.exits.iter_mut().map(|exit| &mut exit.after);
        for after in exits.chain(self.left.iter_mut().map(|left| &mut left.after)) {
            *after = kept.get(*after).copied().unwrap_or(0);
        }
        self.troubles.retain(is_kept);
    }

    /// Returns a death with an exception or an exit code.
    pub(super) fn spoken_death(&self, stands: bool) -> Option<Death> {
        for (index, (node, trouble)) in self.troubles.iter().enumerate() {
            if trouble.kind == TroubleKind::Signal || is_schedulers(trouble.kind) {
                return None;
            }
            let Some(rank) = trouble.rank else { continue };
            if self.is_stopped_before(index, node) && trouble.kind != TroubleKind::Exit {
                continue;
            }
            let is_own = match trouble.kind {
                TroubleKind::Error
                | TroubleKind::GpuMemory
                | TroubleKind::HostMemory
                | TroubleKind::CollectiveMismatch => true,
                TroubleKind::Exit => !stands && self.is_own_exit(index, rank, trouble),
                _ => false,
            };
            if is_own {
                return Some(self.death(node, rank, trouble));
            }
        }
        None
    }

    /// Returns true if a rank's exit code is the first sign of its end and no consequence of something else.
    pub(super) fn is_own_exit(&self, index: usize, rank: Rank, trouble: &Trouble) -> bool {
        let (node, _) = &self.troubles[index];
        let lost_others = self.troubles.iter().any(|(_, other)| {
            let is_victim = matches!(other.kind, TroubleKind::PeerLost | TroubleKind::CollectiveTimeout);
            is_victim && other.rank == Some(rank)
        });
        let was_stopped = self.is_stopped_before(index, node);
        let timed_out = self
            .troubles
            .iter()
            .any(|(_, other)| other.kind == TroubleKind::CollectiveTimeout);
        let aborted = trouble.code == Some(ABORTED) && timed_out;
        let was_ended = was_stopped && trouble.code.is_none_or(|code| ENDED.contains(&code));
        !(lost_others || aborted || was_ended)
    }

    /// Returns true if the node's launcher had begun to stop its workers before this trouble.
    fn is_stopped_before(&self, index: usize, node: &NodeId) -> bool {
        let mut before = self.troubles[..index].iter();
        before.any(|(on, other)| on == node && other.kind == TroubleKind::LauncherStop)
    }

    fn death(&self, node: &NodeId, rank: Rank, first: &Trouble) -> Death {
        // The exception comes from the rank and the code from its launcher, in either order.
        let of_rank = || self.troubles.iter().map(|(_, trouble)| trouble);
        let of_rank = || of_rank().filter(|trouble| trouble.rank == Some(rank));
        let spoken = of_rank().find(|trouble| trouble.kind != TroubleKind::Exit);
        // A library that aborts prints the reason but no rank. The launcher reports which rank aborted there.
        let printed = self.troubles.iter().find(|(on, trouble)| {
            on == node && trouble.rank.is_none() && trouble.kind == TroubleKind::CollectiveMismatch
        });
        let printed = printed
            .filter(|_| first.code == Some(ABORTED))
            .map(|(_, trouble)| trouble);
        let told = spoken.or(printed).unwrap_or(first);
        let code = of_rank().find_map(|trouble| trouble.code);
        Death {
            node: node.clone(),
            rank,
            code,
            says: told.says.clone(),
        }
    }

    /// Returns a process that is gone without an error of its own or of its launcher, while others wait for it.
    fn silent_death(&self, now: Time) -> Option<Death> {
        let gone = self.silent()?;
        let is_stopped = self
            .troubles
            .iter()
            .any(|(node, trouble)| is_stop(trouble.kind) && (*node == gone.node || trouble.rank.is_none()));
        let lost_by_others = self
            .troubles
            .iter()
            .any(|(_, trouble)| trouble.kind == TroubleKind::PeerLost && trouble.rank != Some(gone.rank));
        let killed = self
            .troubles
            .iter()
            .any(|(node, trouble)| trouble.kind == TroubleKind::OomKill && *node == gone.node);
        let is_over = self.exits.iter().any(|exit| exit.code != 0);
        let is_sure = now.0.saturating_sub(gone.at.0) >= GRACE_NS || is_over;
        let is_missed = gone.is_missed || lost_by_others || killed;
        (is_sure && is_missed && !is_stopped).then(|| {
            let death = Death::quiet(gone.node.clone(), gone.rank);
            match killed {
                true => Death {
                    says: "the kernel ended processes of its node because of a lack of memory".into(),
                    ..death
                },
                false => death,
            }
        })
    }

    /// Returns the first rank that was gone without an error. If several were gone in one beat, it is the one that was
    /// idle longest.
    pub(super) fn silent(&self) -> Option<&Gone> {
        let spoke = |rank| {
            self.troubles
                .iter()
                .any(|(_, trouble)| trouble.rank == Some(rank))
        };
        let silent = self.gone.iter().filter(|gone| !spoke(gone.rank));
        silent.max_by_key(|gone| gone.idle_ns)
    }

    /// Returns the rank that detached before the first other rank lost a peer or timed out, which shows that others
    /// kept training.
    pub(super) fn left_early(&self) -> Option<&Left> {
        let first = self.troubles.iter().position(|(_, trouble)| {
            matches!(
                trouble.kind,
                TroubleKind::PeerLost | TroubleKind::CollectiveTimeout
            )
        })?;
        let is_victim = |trouble: &Trouble| {
            use TroubleKind::{CollectiveTimeout, Exit, LauncherStop, PeerLost};
            matches!(trouble.kind, PeerLost | CollectiveTimeout | Exit | LauncherStop)
        };
        let only_victims = self.troubles.iter().all(|(_, trouble)| is_victim(trouble));
        let left = self.left.first()?;
        (only_victims && left.after <= first).then_some(left)
    }
}

/// Returns true if processes that end after a trouble of this kind end on request.
pub(super) fn is_stop(kind: TroubleKind) -> bool {
    matches!(kind, TroubleKind::Signal | TroubleKind::LauncherStop) || is_schedulers(kind)
}
