//! Finds the cause of a slowdown from joined evidence, if there is one. Each cause needs a counter of its own in the
//! window.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::activity::Activity;
use super::cause_rules::{CAUSE_RULES, CauseInput, CauseRule, ports_fail};
use super::facts::{Fact, Facts};
use super::gpus::Gpus;
use super::hosts::Hosts;
use super::series::Stamp;
use crate::detect::comm::communicators::Comms;
use crate::detect::members::roster::Roster;
use crate::detect::step::plan::Plan;
use crate::event::{GpuReading, HostReading, Signal};
use crate::frame::Provenance;
use crate::id::{GpuId, NodeId, Rank};
use crate::policy::Thresholds;
use crate::stats;
use crate::time::Time;
use crate::verdict::{Cause, Evidence};

/// Maximum number of peers, and of a suspect's ranks, that are examined for a cause.
const PEERS: usize = 64;
/// If at least this many peers are on other nodes, only those are used as peers. Otherwise a problem that a whole node
/// shares would not stand out from the ranks of that node.
const ELSEWHERE: usize = 3;

/// Recent counter readings.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Causes {
    gpus: Gpus,
    hosts: Hosts,
    activity: Activity,
}

/// A slow rank or group of ranks, and what its steps show.
#[derive(Clone, Copy, Debug)]
pub struct Suspect<'a> {
    /// The suspect's ranks, sorted.
    pub ranks: &'a [Rank],
    pub since: Time,
    /// Self-time in excess of the peers', seconds per step.
    pub excess_s: f64,
    /// The same excess as a share of step time, and as a share of the peers' self-time.
    pub excess_ratio: f64,
    pub slower_ratio: f64,
    /// The parts of the excess in the data phase and in garbage collection.
    pub data_excess_s: f64,
    pub gc_excess_s: f64,
    /// First and last journal entry of the suspect's steps.
    pub entries: (u64, u64),
}

/// The data with which the counters of a suspect may be compared.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    pub roster: &'a Roster,
    pub plan: &'a Plan,
    pub comms: &'a Comms,
    pub limits: &'a Thresholds,
}

/// A cause with its evidence, and the provenance of that evidence.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Explained {
    pub cause: Cause,
    pub evidence: Vec<Evidence>,
    pub signals: Vec<Signal>,
    pub provenance: Provenance,
}

/// Overall result from a suspect's counters.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Judgment {
    /// The cause that explains most of the excess.
    pub cause: Option<Explained>,
    /// Causes that explain part of the excess.
    pub contributing: Vec<Evidence>,
    /// True if readings that have not arrived yet may change the result.
    pub is_early: bool,
}

/// The facts about one rank of a suspect, and those about its peers.
struct Beside {
    own: Facts,
    peers: Facts,
    inside_is_slow: Option<bool>,
    outside_is_slow: Option<bool>,
}

impl Causes {
    /// Takes a GPU reading. Returns true if it is the first reading of this GPU.
    pub fn gpu(&mut self, stamp: Stamp, reading: &GpuReading) -> bool {
        self.activity.reading(reading);
        self.gpus.observe(stamp, reading)
    }

    /// Records that a step was completed. From now on, GPU activity counts as training.
    pub fn begin_steps(&mut self) {
        self.activity.begin();
    }

    /// Returns the GPU activity since the first step.
    pub fn activity(&self) -> &Activity {
        &self.activity
    }

    /// Returns the number of GPUs that were read.
    pub fn gpus_read(&self) -> usize {
        self.gpus.len()
    }

    /// Takes a reading of a node, or of a rank's process on it.
    pub fn host(&mut self, stamp: Stamp, node: &NodeId, reading: &HostReading) {
        self.hosts.observe(stamp, node, reading);
    }

    /// Drops the readings of the old processes, because a new group of ranks started.
    pub fn clear_ranks(&mut self) {
        self.hosts.clear_ranks();
    }

    /// Returns the model of a GPU, if the GPU was read.
    pub fn model(&self, gpu: &GpuId) -> Option<Arc<str>> {
        self.gpus.model(gpu)
    }

    /// Returns how many seconds a rank's process waited for a CPU since the reading at `since`, and the time of the
    /// last reading. The wait is the larger of two times: throttled by the quota, and ready with no CPU free. Where
    /// processes are not read, the node's counters are used. Returns `None` if there is no reading after `since`.
    pub fn waited_for_cpu(&self, rank: Rank, since: Time, roster: &Roster) -> Option<(f64, Time)> {
        self.hosts.waited_for_cpu(rank, &roster.member(rank)?.node, since)
    }

    /// Returns the cause that counters confirm for a suspect, or none if no counter explains most of the excess. If the
    /// suspect has several ranks, most of them must show the cause. `known` is the cause found earlier, which is kept
    /// while it still holds.
    pub fn explain(&self, suspect: &Suspect<'_>, scope: &Scope<'_>, known: Option<Cause>) -> Judgment {
        let beside = self.beside(suspect, scope);
        let cases: Vec<CauseInput<'_>> = beside.iter().map(|one| one.input(suspect, scope)).collect();
        let most = |holds: &dyn Fn(&CauseInput<'_>) -> bool| {
            cases.iter().filter(|input| holds(input)).count() * 2 > cases.len()
        };
        let is_cause = |rule: &&CauseRule| most(&|input| rule.is_cause(input));
        let found = CAUSE_RULES
            .iter()
            .find(|rule| most(&|input| rule.is_cause(input) && !rule.yields(input)));
        // Prefer PCIe to data loading, because it is the more specific cause of a slow data phase.
        let is_finer = |rule: &&CauseRule| {
            rule.cause == Cause::DataLoading && found.is_some_and(|found| found.cause == Cause::Pcie)
        };
        let stays = CAUSE_RULES
            .iter()
            .filter(|rule| Some(rule.cause) == known)
            .find(is_cause)
            .filter(|rule| !is_finer(rule));
        let cause = stays.or(found).and_then(|rule| {
            let first = cases.iter().position(|input| rule.is_cause(input))?;
            Some(beside[first].explained(rule, &cases[first], suspect))
        });
        // PCIe and data loading count as the same cause here, because slow PCIe transfers are part of data loading.
        let is_bus = |explained: &Explained| explained.cause == Cause::Pcie;
        let is_same =
            |rule: &CauseRule| rule.cause == Cause::DataLoading && cause.as_ref().is_some_and(is_bus);
        let contributing = CAUSE_RULES
            .iter()
            .filter(|rule| !is_same(rule))
            .filter_map(|rule| {
                let mut shares: Vec<f64> = cases
                    .iter()
                    .filter_map(|input| rule.contribution(input))
                    .collect();
                let is_of_most = shares.len() * 2 > cases.len();
                let share = stats::median(&mut shares).filter(|_| is_of_most)?;
                Some(explains(rule.cause, share, suspect.entries))
            });
        let contributing = contributing.collect();
        Judgment {
            cause,
            contributing,
            is_early: most(&|input| input.is_early()),
        }
    }

    /// Returns the ranks of a suspect, each with its peers.
    fn beside(&self, suspect: &Suspect<'_>, scope: &Scope<'_>) -> Vec<Beside> {
        let stride = suspect.ranks.len().div_ceil(PEERS).max(1);
        let mut of_peers: BTreeMap<(u32, u32), Facts> = BTreeMap::new();
        let mut beside = Vec::new();
        for rank in suspect.ranks.iter().step_by(stride) {
            let Some(place) = scope.plan.place(*rank) else {
                continue;
            };
            let peers = *of_peers
                .entry((place.role, place.node))
                .or_insert_with(|| self.peers(*rank, suspect, scope));
            beside.push(Beside {
                own: self.facts(*rank, suspect.since, scope),
                peers,
                inside_is_slow: scope.comms.is_slow_inside(*rank),
                outside_is_slow: scope.comms.is_slow_outside(*rank),
            });
        }
        beside
    }

    /// Returns NVLink errors on any of `ranks` if they are far above those of the rank's peers.
    pub fn nvlink(&self, ranks: &[Rank], since: Time, scope: &Scope<'_>) -> Option<Explained> {
        let rule = CAUSE_RULES.iter().find(|rule| rule.cause == Cause::Nvlink)?;
        ranks.iter().take(PEERS).find_map(|rank| {
            let alone = [*rank];
            let suspect = Suspect {
                ranks: &alone,
                since,
                excess_s: 0.0,
                excess_ratio: 0.0,
                slower_ratio: 0.0,
                data_excess_s: 0.0,
                gc_excess_s: 0.0,
                entries: (0, 0),
            };
            let beside = Beside {
                own: self.facts(*rank, since, scope),
                peers: self.peers(*rank, &suspect, scope),
                inside_is_slow: Some(true),
                outside_is_slow: None,
            };
            let input = beside.input(&suspect, scope);
            (rule.shows)(&input).then(|| beside.explained(rule, &input, &suspect))
        })
    }

    /// Returns evidence if the ports of `node` count errors and those of `others` do not.
    pub fn ports(
        &self,
        node: &NodeId,
        others: &[NodeId],
        since: Time,
        limits: &Thresholds,
    ) -> Option<Explained> {
        let facts = |node: &NodeId| {
            let mut facts = Facts::default();
            // No rank has this number, so only the node's readings are filled in.
            self.hosts.fill_facts(Rank(u32::MAX), node, since, &mut facts);
            facts
        };
        let own = facts(node);
        let peers: Vec<Facts> = others
            .iter()
            .filter(|other| *other != node)
            .take(PEERS)
            .map(facts)
            .collect();
        let peers = Facts::medians(&peers);
        ports_fail(&own, &peers, &limits.causes).then(|| Explained {
            cause: Cause::Network,
            evidence: own.evidence(&[Fact::NetErrorRate, Fact::NetRate], &peers),
            signals: vec![Signal::S4],
            provenance: own.provenance.max(peers.provenance),
        })
    }

    /// Returns all facts about a rank since `since`.
    fn facts(&self, rank: Rank, since: Time, scope: &Scope<'_>) -> Facts {
        let mut facts = Facts::default();
        if let Some(member) = scope.roster.member(rank) {
            if let Some(gpu) = &member.gpu {
                self.gpus.fill_facts(gpu, since, &scope.limits.causes, &mut facts);
            }
            self.hosts.fill_facts(rank, &member.node, since, &mut facts);
        }
        facts
    }

    /// Returns the facts of a typical rank since `since`: medians over a sample that is spread evenly over the job's
    /// ranks.
    pub fn of_job(&self, since: Time, scope: &Scope<'_>) -> Facts {
        let roles = scope.plan.roles.iter();
        let ranks: Vec<Rank> = roles.flat_map(|role| role.members.iter().copied()).collect();
        let stride = ranks.len().div_ceil(PEERS).max(1);
        let some = ranks.iter().step_by(stride);
        let facts: Vec<Facts> = some.map(|rank| self.facts(*rank, since, scope)).collect();
        Facts::medians(&facts)
    }

    /// Returns the medians over ranks that do the same work and are not suspects themselves. The ranks are sampled
    /// evenly across the role, and only from other nodes if there are enough of them there.
    fn peers(&self, rank: Rank, suspect: &Suspect<'_>, scope: &Scope<'_>) -> Facts {
        let Some(place) = scope.plan.place(rank) else {
            return Facts::default();
        };
        let of_role = scope.plan.roles[place.role as usize]
            .members
            .iter()
            .copied()
            .filter(|peer| suspect.ranks.binary_search(peer).is_err());
        let (mut peers, near): (Vec<Rank>, Vec<Rank>) = of_role.partition(|peer| {
            scope
                .plan
                .place(*peer)
                .is_some_and(|peer| peer.node != place.node)
        });
        if peers.len() < ELSEWHERE {
            peers.extend(near);
        }
        let stride = peers.len().div_ceil(PEERS).max(1);
        let facts: Vec<Facts> = peers
            .iter()
            .step_by(stride)
            .map(|peer| self.facts(*peer, suspect.since, scope))
            .collect();
        Facts::medians(&facts)
    }
}

impl Beside {
    fn input<'a>(&'a self, suspect: &Suspect<'_>, scope: &Scope<'a>) -> CauseInput<'a> {
        let share = |part: f64| {
            if suspect.excess_s > 0.0 {
                part / suspect.excess_s
            } else {
                0.0
            }
        };
        CauseInput {
            own: &self.own,
            peers: &self.peers,
            excess_ratio: suspect.excess_ratio,
            slower_ratio: suspect.slower_ratio,
            data_share: share(suspect.data_excess_s),
            gc_share: share(suspect.gc_excess_s),
            inside_is_slow: self.inside_is_slow,
            outside_is_slow: self.outside_is_slow,
            limits: scope.limits,
        }
    }

    fn explained(&self, rule: &CauseRule, input: &CauseInput<'_>, suspect: &Suspect<'_>) -> Explained {
        let excess = match rule.cause {
            Cause::Pcie | Cause::DataLoading => Some(("data_excess_s", suspect.data_excess_s)),
            Cause::GcPause => Some(("gc_excess_s", suspect.gc_excess_s)),
            _ => None,
        };
        let mut evidence: Vec<Evidence> = excess
            .into_iter()
            .map(|(what, value)| Evidence {
                what: what.into(),
                value,
                peers: None,
                entries: Some(suspect.entries),
            })
            .collect();
        if let Some(share) = (rule.explains)(input) {
            evidence.push(explains(rule.cause, share, suspect.entries));
        }
        let counters = self.own.evidence(rule.evidence, &self.peers);
        let mut signals = vec![rule.signal];
        let mut provenance = Provenance::Live;
        if !counters.is_empty() {
            provenance = self.own.provenance.max(self.peers.provenance);
            if rule.cause == Cause::DataLoading {
                signals.push(Signal::S4);
            }
        }
        evidence.extend(counters);
        Explained {
            cause: rule.cause,
            evidence,
            signals,
            provenance,
        }
    }
}

/// Returns as evidence how much of the excess a cause explains.
pub fn explains(cause: Cause, share: f64, entries: (u64, u64)) -> Evidence {
    Evidence {
        what: format!("explained_by_{}_ratio", cause.name().replace('-', "_")).into(),
        value: share,
        peers: None,
        entries: Some(entries),
    }
}
