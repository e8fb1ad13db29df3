//! An open straggler finding: its extent (a rank, a node, a rack or the whole job), its cause as far as known, and its
//! account.

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

/// ln of 2. Beyond this, a slow rank was far slower in a step than it usually is, so it explains a step that is far too
/// long.
pub const FAR: f64 = std::f64::consts::LN_2;

/// One open finding.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OpenStraggler {
    pub extent: Extent,
    /// The slow ranks, sorted.
    pub members: Vec<Rank>,
    /// The step before the slowness began.
    pub start: u64,
    /// ln of the slowdown for which the finding was raised.
    pub alternative: f64,
    pub clearing: Clearing,
    pub severity: Severity,
    /// The step after which the detector was certain.
    pub step: u64,
    /// The cause that explains most of the excess. It is kept while the counters show it.
    pub explained: Option<Explained>,
    /// How many times in a row the counters did not show the cause.
    unsupported: u32,
    /// Causes that explain part of the excess.
    contributing: Vec<Evidence>,
    /// True if readings that have not arrived yet may show more of the cause.
    pub is_early: bool,
    /// When the last search for a cause was made.
    asked: Time,
    pub few_peers: bool,
    /// Cause of an open rotating-straggler finding that covers this one and its cost, if there is one.
    pub rotates_for: Option<Cause>,
    pub account: Account,
    /// Seconds of the cost that were already reported, by earlier findings on parts of this one.
    pub told_s: f64,
    /// The account as it was at the first sign of a recovery.
    pub before_recovery: Account,
}

impl OpenStraggler {
    /// Creates a finding with its account so far and without a known cause.
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

    /// Returns true if it is time to search for a cause again: at each reading if it is a single rank without a cause,
    /// or else at intervals.
    pub fn asks_again(&self, now: Time) -> bool {
        let is_cheap = self.members.len() == 1 && self.explained.is_none();
        is_cheap || now.since(self.asked) >= ASKED_EVERY
    }

    /// Takes the result of a search for a cause. A cause that the counters no longer show is dropped, or replaced by
    /// another one, after `patience` searches in a row.
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
        // The current cause must not be listed as a contributing one as well.
        if let Some(known) = &self.explained {
            let is_said = |part: &Evidence| known.evidence.iter().any(|piece| piece.what == part.what);
            self.contributing.retain(|part| !is_said(part));
        }
    }

    /// Returns true if part of the excess is explained.
    pub fn has_contributions(&self) -> bool {
        !self.contributing.is_empty()
    }

    /// Returns why the ranks are slow, as far as known.
    pub fn cause(&self) -> Cause {
        self.explained
            .as_ref()
            .map_or(Cause::Unknown, |explained| explained.cause)
    }

    /// Returns the outcome so far, or at the end.
    pub fn outcome(&self, roster: &Roster) -> Outcome {
        Outcome {
            lost_rank_s: self.lost(roster),
            slowdown_ratio: Some(self.account.x().exp()),
            impact_ratio: Some(self.account.impact()),
            evidence: self.evidence(),
        }
    }

    /// Returns what the whole job lost because of these ranks, in rank-seconds.
    pub fn lost(&self, roster: &Roster) -> f64 {
        self.account.lost_s() * f64::from(roster.world_size)
    }

    /// Returns the evidence of the finding.
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
