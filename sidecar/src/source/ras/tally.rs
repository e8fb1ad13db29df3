//! What an answer comes to: which ranks stand out among those of their communicator, by the counts alone.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use paceline_health::event::{RasAccess, RasRank, RasReport, RasState};
use paceline_health::id::Rank;

/// Ranks that are told of.
const MAX_TOLD: usize = 32;
/// Ranks that stand out and are kept while an answer is read.
const MAX_KEPT: usize = 4096;

/// One rank's process and GPU, by which it is the same in all communicators of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Who {
    /// An address.
    pub host: Arc<str>,
    /// Its process there; zero: not told.
    pub pid: u32,
    /// Its CUDA device.
    pub device: u32,
}

/// One communicator of an answer.
#[derive(Clone, Debug, Default)]
pub struct Communicator {
    /// Its hash.
    pub hash: u64,
    /// Ranks that it has.
    pub size: u32,
    /// Those that answered.
    pub members: Vec<Member>,
    /// Those that did not, with how.
    pub missing: Vec<(Who, u32, RasState)>,
}

/// A rank that answered.
#[derive(Clone, Debug, Default)]
pub struct Member {
    /// Who it is.
    pub who: Who,
    /// Its number in the communicator.
    pub rank: u32,
    /// An error or an abort.
    pub trouble: Option<RasState>,
    /// Collectives launched, by kind.
    pub counts: Vec<(Cow<'static, str>, u64)>,
}

/// Ranks that have launched the same number of a collective.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// That number.
    pub launched: u64,
    /// How many they are.
    pub count: u32,
    /// Those that are known.
    pub known: Vec<Who>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Tally {
    /// Version of NCCL.
    pub nccl: String,
    /// Communicators told of so far.
    pub comms: u32,
    uneven: BTreeSet<u64>,
    size: u32,
    numbers: BTreeMap<Who, u32>,
    out: Vec<(Who, RasRank)>,
    more: u32,
}

impl Tally {
    /// Takes a communicator of which everything was told.
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

    /// A communicator has so many ranks; which they are is not told.
    pub fn has_size(&mut self, size: u32) {
        if size > self.size {
            self.size = size;
            self.numbers.clear();
        }
    }

    /// A rank's number is told beside its process, in a communicator of so many.
    pub fn number(&mut self, who: &Who, rank: u32, size: u32) {
        if size == self.size && self.numbers.len() < MAX_KEPT {
            self.numbers.insert(who.clone(), rank);
        }
    }

    /// Ranks of a communicator have launched different numbers of a collective. What most of them did is the measure.
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

    /// A rank is missing, or has an error.
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

    /// The answer in short.
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
