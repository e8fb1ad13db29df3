//! Stacks of ranks that do not move, as evidence. They raise no finding of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{hang_cause, unlaunched};
use crate::event::{Activity, Phase, Stacks, ThreadState, WorkerActivity};
use crate::id::Rank;
use crate::report::StackGroup;
use crate::text::humanize;
use crate::time::Time;
use crate::verdict::Cause;

/// Maximum number of groups of ranks in a job's evidence.
const MAX_GROUPS: usize = 4;
/// Maximum number of groups in a report.
const MAX_REPORTED: usize = 64;
/// Maximum number of different stacks that are kept with all their frames.
const MAX_EXAMPLES: usize = 256;

/// The latest stacks of each rank that has not moved since they were read.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct StackEvidence {
    by_rank: BTreeMap<Rank, Taken>,
    /// Full stacks for some of the texts.
    examples: BTreeMap<Arc<str>, Example>,
    /// The text that most ranks share, and the number of these ranks.
    common: Option<(Arc<str>, usize)>,
    /// True if ranks have answered or moved since `common` was counted.
    is_changed: bool,
    /// Number of answers with new content so far.
    version: u64,
    /// Time of the latest answer.
    latest: Time,
}

/// What a rank did, and when.
#[derive(Debug, Serialize, Deserialize)]
struct Taken {
    at: Time,
    /// The activity as text. Ranks with the same text do the same.
    says: Arc<str>,
}

/// The stacks behind a text.
#[derive(Debug, Serialize, Deserialize)]
struct Example {
    main: Activity,
    workers: Vec<WorkerActivity>,
}

impl StackEvidence {
    /// Takes the activity of the ranks of a node. Ranks that are not members are left out.
    pub fn take(&mut self, at: Time, stacks: &Stacks, is_member: impl Fn(Rank) -> bool) {
        let says: Arc<str> = words(stacks).into();
        for rank in stacks.ranks.iter().filter(|rank| is_member(**rank)) {
            let taken = Taken {
                at,
                says: says.clone(),
            };
            let before = self.by_rank.insert(*rank, taken);
            self.version += u64::from(before.is_none_or(|before| before.says != says));
            (self.is_changed, self.latest) = (true, at);
        }
        if self.examples.len() < MAX_EXAMPLES {
            self.examples.entry(says).or_insert_with(|| Example {
                main: stacks.main.clone(),
                workers: stacks.workers.clone(),
            });
        }
    }

    /// Drops the earlier activity of a rank, because the rank reached a new position at `moved`.
    pub fn forget_before(&mut self, rank: Rank, moved: Time) {
        if self.by_rank.get(&rank).is_some_and(|taken| taken.at < moved) {
            self.by_rank.remove(&rank);
            self.is_changed = true;
        }
    }

    /// Drops ranks that have ended or are not members.
    pub fn keep(&mut self, is_member: impl Fn(Rank) -> bool) {
        let before = self.by_rank.len();
        self.by_rank.retain(|rank, _| is_member(*rank));
        self.is_changed |= self.by_rank.len() != before;
    }

    /// Counts what most ranks do, and drops stacks of ranks that moved. Call it before findings are reported.
    pub fn count(&mut self) {
        if std::mem::take(&mut self.is_changed) {
            let groups = self.groups(|_| true);
            let common = groups.last().map(|(says, ranks)| ((*says).clone(), ranks.len()));
            let known: BTreeSet<Arc<str>> = groups.into_iter().map(|(says, _)| says.clone()).collect();
            self.common = common;
            self.examples.retain(|says, _| known.contains(says));
        }
    }

    /// Returns a number that changes with the answers for a silence since `since`, or zero if there are none.
    pub fn version(&self, since: Time) -> u64 {
        u64::from(self.latest >= since) * self.version
    }

    /// Returns what `rank` did in a silence since `since`, and what most others did if that differs. An example is
    /// `data.py:88 in next_batch; 3 other ranks: train.py:41 in step`.
    pub fn says_of(&self, rank: Rank, since: Time) -> Option<Arc<str>> {
        let own = self.by_rank.get(&rank).filter(|taken| taken.at >= since)?;
        Some(match self.common.as_ref().filter(|(says, _)| *says != own.says) {
            None => own.says.clone(),
            Some((says, 1)) => format!("{}; 1 other rank: {says}", own.says).into(),
            Some((says, others)) => format!("{}; {others} other ranks: {says}", own.says).into(),
        })
    }

    /// Returns the collective call that `rank` has been in since `since`, from its stack.
    pub fn call_of(&self, rank: Rank, since: Time) -> Option<&'static str> {
        let taken = self.by_rank.get(&rank).filter(|taken| taken.at >= since)?;
        unlaunched::call(&self.examples.get(&taken.says)?.main)
    }

    /// Returns the ranks that were stopped by a signal in a silence since `since`.
    pub fn stopped(&self, since: Time) -> impl Iterator<Item = Rank> {
        let is_stopped = |example: &Example| example.main.state == ThreadState::Stopped;
        let stopped = self.examples.iter().filter(|(_, example)| is_stopped(example));
        let stopped: BTreeSet<&Arc<str>> = stopped.map(|(says, _)| says).collect();
        // Skip the check of all ranks, of which there may be thousands, if none is stopped.
        let ranks = (!stopped.is_empty()).then_some(&self.by_rank);
        let ranks = ranks.into_iter().flatten();
        let stands = move |taken: &Taken| taken.at >= since && stopped.contains(&taken.says);
        ranks
            .filter(move |(_, taken)| stands(taken))
            .map(|(rank, _)| *rank)
    }

    /// Returns why `rank` has not moved since `since`, in this phase, as far as its activity shows.
    pub fn cause_of(&self, rank: Rank, since: Time, phase: Phase, has_gpu: bool) -> Cause {
        let taken = self.by_rank.get(&rank).filter(|taken| taken.at >= since);
        let example = taken.and_then(|taken| self.examples.get(&taken.says));
        example.map_or(Cause::Unknown, |example| {
            hang_cause::cause(&example.main, &example.workers, phase, has_gpu)
        })
    }

    /// Returns what each group of ranks did in a silence since `since`. The smallest group comes first, because a rank
    /// that does what no other does is the one to look at.
    pub fn says_of_all(&self, since: Time) -> Option<Arc<str>> {
        let groups = self.groups(|taken| taken.at >= since);
        let named = groups.iter().take(MAX_GROUPS);
        let named: Vec<String> = named
            .map(|(says, ranks)| format!("{}: {says}", humanize::ranks(ranks)))
            .collect();
        (!named.is_empty()).then(|| named.join("; ").into())
    }

    /// Returns all current groups, the smallest first. `seconds` converts a time.
    pub fn report(&self, seconds: impl Fn(Time) -> f64) -> Vec<StackGroup> {
        let group = |(says, ranks): (&Arc<str>, Vec<Rank>)| {
            let last = ranks.iter().filter_map(|rank| self.by_rank.get(rank));
            let example = self.examples.get(says);
            StackGroup {
                taken_s: last.map(|taken| taken.at).max().map_or(0.0, &seconds),
                says: says.clone(),
                main: example.map_or_else(Activity::default, |example| example.main.clone()),
                workers: example.map_or_else(Vec::new, |example| example.workers.clone()),
                ranks,
            }
        };
        let groups = self.groups(|_| true).into_iter();
        groups.take(MAX_REPORTED).map(group).collect()
    }

    /// Returns the ranks with the same activity, the smallest group first.
    fn groups(&self, counts: impl Fn(&Taken) -> bool) -> Vec<(&Arc<str>, Vec<Rank>)> {
        let mut groups: BTreeMap<&Arc<str>, Vec<Rank>> = BTreeMap::new();
        for (rank, taken) in self.by_rank.iter().filter(|(_, taken)| counts(taken)) {
            groups.entry(&taken.says).or_default().push(*rank);
        }
        let mut groups: Vec<(&Arc<str>, Vec<Rank>)> = groups.into_iter().collect();
        groups.sort_by_key(|(_, ranks)| ranks.len());
        groups
    }
}

/// Returns text such as `data.py:88 in next_batch (in _try_get_data), read of /data/x.bin (nfs4 at /data); 2 workers:
/// ...`.
fn words(stacks: &Stacks) -> String {
    let mut words = activity(&stacks.main);
    for worker in &stacks.workers {
        let count = worker.count;
        let workers = if count == 1 { "worker" } else { "workers" };
        words += &format!("; {count} {workers}: {}", activity(&worker.activity));
    }
    words
}

fn activity(activity: &Activity) -> String {
    let mut parts = Vec::new();
    let own = activity.own.and_then(|own| activity.frames.get(usize::from(own)));
    match (own, activity.frames.first()) {
        (Some(own), Some(inner)) if own != inner => {
            parts.push(format!("{own} (inside {})", inner.function));
        }
        (_, Some(inner)) => parts.push(inner.to_string()),
        _ => parts.push(activity.missing.to_string()),
    }
    if activity.state == ThreadState::Running && !activity.frames.is_empty() {
        parts.push("running".to_owned());
    }
    if !activity.waits_in.is_empty() {
        parts.push(activity.waits_in.to_string());
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::StackFrame;

    fn frame(function: &str, file: &str, line: u32) -> StackFrame {
        StackFrame {
            function: function.into(),
            file: file.into(),
            line,
        }
    }

    fn stacks(ranks: &[u32], main: Activity) -> Stacks {
        Stacks {
            ranks: ranks.iter().copied().map(Rank).collect(),
            restart: 0,
            main,
            workers: Vec::new(),
        }
    }

    fn waiting() -> Activity {
        Activity {
            state: ThreadState::Sleeping,
            frames: vec![
                frame(
                    "all_reduce",
                    "/v/site-packages/torch/distributed/distributed_c10d.py",
                    2806,
                ),
                frame("step", "/home/u/train.py", 41),
            ],
            own: Some(1),
            waits_in: "poll".into(),
            ..Activity::default()
        }
    }

    fn loading() -> Activity {
        Activity {
            state: ThreadState::Sleeping,
            frames: vec![frame("next_batch", "/home/u/data.py", 88)],
            own: Some(0),
            waits_in: "read of /data/x.bin (nfs4 at /data)".into(),
            ..Activity::default()
        }
    }

    #[test]
    fn a_rank_and_the_others() {
        let mut evidence = StackEvidence::default();
        assert_eq!(evidence.says_of(Rank(2), Time(0)), None);
        evidence.take(Time(5), &stacks(&[0, 1, 3], waiting()), |_| true);
        evidence.take(Time(5), &stacks(&[2], loading()), |_| true);
        evidence.count();
        assert_eq!(
            evidence.says_of(Rank(2), Time(4)).as_deref(),
            Some(
                "data.py:88 in next_batch, read of /data/x.bin (nfs4 at /data); 3 other ranks: train.py:41 in step \
                 (inside all_reduce), poll"
            )
        );
        assert_eq!(
            evidence.says_of_all(Time(4)).as_deref(),
            Some(
                "rank 2: data.py:88 in next_batch, read of /data/x.bin (nfs4 at /data); ranks 0-1, 3: train.py:41 in \
                 step (inside all_reduce), poll"
            )
        );
        // The stacks are from an earlier silence, so they do not count.
        assert_eq!(evidence.says_of(Rank(2), Time(6)), None);
        assert_eq!(evidence.version(Time(6)), 0);
        let report = evidence.report(|at| at.0 as f64);
        let ranks: Vec<&[Rank]> = report.iter().map(|group| group.ranks.as_slice()).collect();
        assert_eq!(ranks, [&[Rank(2)][..], &[Rank(0), Rank(1), Rank(3)]]);
        // The rank moves on, so its stack is dropped.
        evidence.forget_before(Rank(2), Time(5));
        assert_eq!(evidence.report(|_| 0.0).len(), 2);
        evidence.forget_before(Rank(2), Time(6));
        assert_eq!(evidence.report(|_| 0.0).len(), 1);
    }

    #[test]
    fn a_process_that_gives_no_stack_says_why() {
        let mut evidence = StackEvidence::default();
        let stopped = Activity {
            state: ThreadState::Stopped,
            missing: "stopped by a signal".into(),
            ..Activity::default()
        };
        let mut stacks = stacks(&[1], stopped);
        stacks.workers.push(WorkerActivity {
            count: 2,
            activity: loading(),
        });
        evidence.take(Time(5), &stacks, |_| true);
        let says = evidence.says_of(Rank(1), Time(5));
        assert_eq!(
            says.as_deref(),
            Some(
                "stopped by a signal; 2 workers: data.py:88 in next_batch, read of /data/x.bin (nfs4 at /data)"
            )
        );
    }
}
