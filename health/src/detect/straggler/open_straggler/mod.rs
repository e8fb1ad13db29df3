//! An open straggler finding: its extent (a rank, a node, a rack or the whole job), its cause as far as it is known,
//! and its account.

mod account;

use serde::{Deserialize, Serialize};

pub use self::account::Account;
use super::cusum::Clearing;
use super::localise::Located;
use crate::detect::cause::causes::{Explained, Judgment};
use crate::detect::claim::{Outcome, piece};
use crate::detect::members::roster::Roster;
use crate::id::{JobId, NodeId, Rank};
use crate::time::Time;
use crate::verdict::{Cause, Evidence, Finding, Severity, Subject};

use std::sync::Arc;
use std::time::Duration;

/// What the slow ranks of a finding share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Extent {
    Rank(Rank),
    Node(NodeId),
    Rack(Arc<str>),
    Job,
}

impl Extent {
    pub fn finding(&self) -> Finding {
        match self {
            Extent::Rank(_) => Finding::Straggler,
            Extent::Node(_) | Extent::Rack(_) => Finding::StragglerNode,
            Extent::Job => Finding::AllRanksSlow,
        }
    }

    pub fn subject(&self, roster: &Roster, job: &JobId) -> Option<Subject> {
        Some(match self {
            Extent::Rank(rank) => roster.subject(*rank)?,
            Extent::Node(node) => Subject::Node { node: node.clone() },
            Extent::Rack(rack) => Subject::Rack { rack: rack.clone() },
            Extent::Job => Subject::Job { job: job.clone() },
        })
    }
}

/// Interval between searches for a cause when many ranks are slow together, or when a cause is known.
const ASKED_EVERY: Duration = Duration::from_secs(1);

/// ln of 2: a slow rank was far slower still, or one that is not slow delayed a step that is far too long.
pub const FAR: f64 = std::f64::consts::LN_2;

/// One open finding.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OpenStraggler {
    pub extent: Extent,
    /// Its slow ranks, sorted.
    pub members: Vec<Rank>,
    /// The step before it began.
    pub start: u64,
    /// ln of the slowdown that it was raised for.
    pub alternative: f64,
    pub clearing: Clearing,
    pub severity: Severity,
    /// The step after which the detector was certain.
    pub step: u64,
    /// The cause that explains most of it; it stays while the counters show it.
    pub explained: Option<Explained>,
    /// How many times in a row they did not.
    unsupported: u32,
    /// Causes that explain part of it.
    contributing: Vec<Evidence>,
    /// Readings still to come may show more of the cause.
    pub is_early: bool,
    /// When a cause was last looked for.
    asked: Time,
    pub few_peers: bool,
    /// Set while an open rotating-straggler finding of this cause covers it, with its cost.
    pub rotates_for: Option<Cause>,
    pub account: Account,
    /// The part of its cost that was reported before, for parts of it, seconds.
    pub told_s: f64,
    /// The account at the first sign of a recovery.
    pub before_recovery: Account,
}

impl OpenStraggler {
    /// A new finding with its account so far, without a known cause.
    pub fn new(
        Located { extent, members }: Located,
        (start, step): (u64, u64),
        alternative: f64,
        account: Account,
    ) -> OpenStraggler {
        OpenStraggler {
            account,
            told_s: 0.0,
            before_recovery: account,
            extent,
            members,
            start,
            alternative,
            clearing: Clearing::default(),
            severity: Severity::Info,
            step,
            explained: None,
            unsupported: 0,
            contributing: Vec::new(),
            is_early: true,
            asked: Time::ZERO,
            few_peers: false,
            rotates_for: None,
        }
    }

    /// Whether to look for a cause again: at each reading for one rank without a cause, otherwise at intervals.
    pub fn asks_again(&self, now: Time) -> bool {
        let is_cheap = self.members.len() == 1 && self.explained.is_none();
        is_cheap || now.since(self.asked) >= ASKED_EVERY
    }

    /// Takes the result of a search for a cause. A cause that the counters no longer show is dropped, for another one
    /// or for none, after `patience` searches in a row.
    pub fn explain(&mut self, now: Time, found: Judgment, patience: u32) {
        self.asked = now;
        self.is_early = found.is_early;
        self.contributing = found.contributing;
        let is_known = |found: &Explained| self.explained.as_ref().is_none_or(|old| old.cause == found.cause);
        let is_finer = |found: &Explained| found.cause == Cause::Pcie && self.cause() == Cause::DataLoading;
        match found.cause {
            Some(found) if is_known(&found) || is_finer(&found) => {
                (self.explained, self.unsupported) = (Some(found), 0);
            }
            found if self.explained.is_some() && !self.is_early => {
                self.unsupported += 1;
                if self.unsupported >= patience {
                    (self.explained, self.unsupported) = (found, 0);
                }
            }
            _ => {}
        }
        // The current cause is not listed as a contributing one as well.
        if let Some(known) = &self.explained {
            let is_said = |part: &Evidence| known.evidence.iter().any(|piece| piece.what == part.what);
            self.contributing.retain(|part| !is_said(part));
        }
    }

    /// Whether part of it is explained.
    pub fn has_contributions(&self) -> bool {
        !self.contributing.is_empty()
    }

    /// Why it is slow, as far as known.
    pub fn cause(&self) -> Cause {
        self.explained
            .as_ref()
            .map_or(Cause::Unknown, |explained| explained.cause)
    }

    /// Outcome so far, or at its end.
    pub fn outcome(&self, roster: &Roster) -> Outcome {
        Outcome {
            lost_rank_s: self.lost(roster),
            slowdown_ratio: Some(self.account.x().exp()),
            impact_ratio: Some(self.account.impact()),
            evidence: self.evidence(),
        }
    }

    /// What the whole job lost because of it, rank-seconds.
    pub fn lost(&self, roster: &Roster) -> f64 {
        self.account.lost_s() * f64::from(roster.world_size)
    }

    /// Its evidence.
    pub fn evidence(&self) -> Vec<Evidence> {
        let mut evidence = self.account.evidence().to_vec();
        if self.members.len() > 1 {
            evidence.push(piece("slow_ranks", self.members.len() as f64, None));
        }
        if self.few_peers {
            evidence.push(piece("low_coverage", 1.0, None));
        }
        evidence.extend(self.contributing.iter().cloned());
        evidence
    }
}
