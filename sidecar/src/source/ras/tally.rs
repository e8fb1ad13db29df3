//! Evaluates a response: uses only the counts to determine which ranks differ from the rest of their communicator.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use paceline_health::event::{RasAccess, RasRank, RasReport, RasState};
use paceline_health::id::Rank;

/// Maximum number of ranks reported.
const MAX_TOLD: usize = 32;
/// Maximum number of differing ranks kept while a response is read.
const MAX_KEPT: usize = 4096;

/// One rank's process and GPU. They identify it in all communicators of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Who {
    /// Address of the process's host.
    pub host: Arc<str>,
    /// Process ID on that host; zero if unknown.
    pub pid: u32,
    /// Number of its CUDA device.
    pub device: u32,
}

/// One communicator of a response.
#[derive(Clone, Debug, Default)]
pub struct Communicator {
    /// Hash that identifies the communicator.
    pub hash: u64,
    /// Number of ranks in the communicator.
    pub size: u32,
    /// Ranks that responded.
    pub members: Vec<Member>,
    /// Ranks that did not respond, with their rank in the communicator and their state.
    pub missing: Vec<(Who, u32, RasState)>,
}

/// A rank that responded.
#[derive(Clone, Debug, Default)]
pub struct Member {
    /// The rank's process and GPU.
    pub who: Who,
    /// The rank's number in the communicator.
    pub rank: u32,
    /// The rank's error or abort, if any.
    pub trouble: Option<RasState>,
    /// Number of collectives launched, by kind.
    pub counts: Vec<(Cow<'static, str>, u64)>,
}

/// Ranks that have launched the same number of collectives of one kind.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// Number of launched collectives.
    pub launched: u64,
    /// Number of ranks in the group.
    pub count: u32,
    /// The ranks of the group that the response identifies.
    pub known: Vec<Who>,
}

/// The evaluation; see the module.
#[derive(Debug, Default)]
pub struct Tally {
    /// Version of NCCL.
    pub nccl: String,
    /// Number of communicators seen so far.
    pub comms: u32,
    uneven: BTreeSet<u64>,
    size: u32,
    numbers: BTreeMap<Who, u32>,
    out: Vec<(Who, RasRank)>,
    more: u32,
}

impl Tally {
    /// Adds a communicator whose ranks are all described.
    pub fn communicator(&mut self, comm: Communicator) {
        self.comms = self.comms.saturating_add(1);
        if comm.size > self.size {
            self.size = comm.size;
            let members = comm
                .members
                .iter()
                .map(|member| (member.who.clone(), member.rank));
            let missing = comm.missing.iter().map(|(who, rank, _)| (who.clone(), *rank));
            self.numbers = members.chain(missing).collect();
        }
        let mut groups: BTreeMap<&str, BTreeMap<u64, Group>> = BTreeMap::new();
        for member in &comm.members {
            if let Some(trouble) = member.trouble {
                self.stands_out(&member.who, trouble, comm.hash);
            }
            for (collective, launched) in &member.counts {
                let group = groups
                    .entry(collective)
                    .or_default()
                    .entry(*launched)
                    .or_default();
                group.launched = *launched;
                group.count += 1;
                group.known.push(member.who.clone());
            }
        }
        for (collective, groups) in groups.into_iter().filter(|(_, groups)| groups.len() > 1) {
            self.compare(comm.hash, collective, groups.into_values());
        }
        for (who, _, state) in &comm.missing {
            self.stands_out(who, *state, comm.hash);
        }
    }

    /// Adds the size of a communicator whose ranks are not listed.
    pub fn has_size(&mut self, size: u32) {
        if size > self.size {
            self.size = size;
            self.numbers.clear();
        }
    }

    /// Adds the rank that a process has in a communicator of this size.
    pub fn number(&mut self, who: &Who, rank: u32, size: u32) {
        if size == self.size && self.numbers.len() < MAX_KEPT {
            self.numbers.insert(who.clone(), rank);
        }
    }

    /// Compares ranks that have launched different numbers of a collective. The largest group is the reference.
    pub fn compare(&mut self, hash: u64, collective: &str, groups: impl Iterator<Item = Group>) {
        let groups: Vec<Group> = groups.collect();
        let usual = groups.iter().max_by_key(|group| (group.count, group.launched));
        let Some(others) = usual.map(|group| group.launched) else {
            return;
        };
        self.uneven.insert(hash);
        for group in groups.iter().filter(|group| group.launched != others) {
            let state = if group.launched < others {
                RasState::Behind
            } else {
                RasState::Ahead
            };
            for who in &group.known {
                self.keep(
                    who,
                    RasRank {
                        collective: collective.into(),
                        launched: group.launched,
                        others,
                        ..rank(who, state, hash)
                    },
                );
            }
            let unknown = (group.count as usize).saturating_sub(group.known.len());
            self.more = self.more.saturating_add(unknown as u32);
        }
    }

    /// Adds a rank that is missing or has an error.
    pub fn stands_out(&mut self, who: &Who, state: RasState, hash: u64) {
        self.uneven.insert(hash);
        self.keep(who, rank(who, state, hash));
    }

    fn keep(&mut self, who: &Who, rank: RasRank) {
        if self.out.len() < MAX_KEPT {
            self.out.push((who.clone(), rank));
        } else {
            self.more = self.more.saturating_add(1);
        }
    }

    /// Returns the summary of the response.
    pub fn finish(self) -> RasReport {
        let mut ranks = self.out;
        for (who, rank) in &mut ranks {
            rank.rank = self.numbers.get(who).copied().map(Rank);
        }
        let lag = |rank: &RasRank| rank.others.abs_diff(rank.launched);
        ranks.sort_by_cached_key(|(who, rank)| (rank.state, Reverse(lag(rank)), rank.rank, who.clone()));
        let mut seen = BTreeSet::new();
        ranks.retain(|(who, _)| seen.insert(who.clone()));
        let more = ranks.len().saturating_sub(MAX_TOLD) as u32;
        ranks.truncate(MAX_TOLD);
        RasReport {
            state: RasAccess::Answered,
            still: false,
            nccl: self.nccl.into(),
            comms: self.comms,
            uneven: self.uneven.len() as u32,
            size: self.size,
            ranks: ranks.into_iter().map(|(_, rank)| rank).collect(),
            more: self.more.saturating_add(more),
            errors: 0,
            text: "".into(),
        }
    }
}

fn rank(who: &Who, state: RasState, hash: u64) -> RasRank {
    RasRank {
        state,
        rank: None,
        comm: hash,
        host: who.host.clone(),
        pid: who.pid,
        collective: "".into(),
        launched: 0,
        others: 0,
    }
}
