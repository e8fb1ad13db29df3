//! What carries a collective. One value is one rank; all ranks make the same calls in the same order.
//!
//! Every call blocks, and ends by its deadline: with an error that names the phase and, where one is known, the rank
//! that was waited for. After an error nothing but [`Transport::abort`] and dropping is of use.

pub mod nccl;
pub mod sim;
pub mod tcp;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::collective::Plan;
use crate::measure::{RankPlace, RankTimes};

/// A rank's end of a transport.
pub trait Transport: Send {
    /// What it is, for the result's head.
    fn about(&self) -> About;

    /// Which rank this is, from 0.
    fn rank(&self) -> usize;

    /// How many take part.
    fn ranks(&self) -> usize;

    /// Buffers, links and schedules for `plan`, so that [`Transport::run`] does nothing but the collective. Replaces
    /// what was prepared before.
    fn prepare(&mut self, plan: &Plan, deadline: &Deadline) -> Result<(), TransportError>;

    /// Runs what was prepared so often, one right after the other, and says how long each took on this rank. What the
    /// buffers hold afterwards is not said (in place, sums grow).
    fn run(&mut self, iterations: u32, deadline: &Deadline) -> Result<Vec<Duration>, TransportError>;

    /// Fills the buffers anew ([`crate::pattern`]), runs once, and counts the wrong elements of this rank's output.
    fn verify(&mut self, deadline: &Deadline) -> Result<u64, TransportError>;

    /// Returns on all ranks with the largest value that any rank handed in.
    fn agree(&mut self, value: u64, deadline: &Deadline) -> Result<u64, TransportError>;

    /// Returns when every rank has called it.
    fn barrier(&mut self, deadline: &Deadline) -> Result<(), TransportError> {
        self.agree(0, deadline).map(|_| ())
    }

    /// Brings every rank's times to rank 0, in the order of ranks; elsewhere `None`.
    fn gather(
        &mut self,
        mine: RankTimes,
        deadline: &Deadline,
    ) -> Result<Option<Vec<RankTimes>>, TransportError>;

    /// Brings to rank 0 where every rank runs, in their order; a transport that knows a rank's device says so. One that
    /// does not carry this leaves rank 0 with what it knows of itself.
    fn places(
        &mut self,
        mine: RankPlace,
        _deadline: &Deadline,
    ) -> Result<Option<Vec<RankPlace>>, TransportError> {
        Ok((self.rank() == 0).then(|| vec![mine]))
    }

    /// Gives up at once, whatever is under way, so that peers that wait for this rank learn of it.
    fn abort(&mut self);
}

/// What a transport is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// `tcp`, `nccl`, `sim`.
    pub transport: String,
    /// Whether nothing of it was measured on a machine.
    pub simulated: bool,
    /// Versions and choices worth keeping beside a figure, by name: `nccl`, `cuda`, `sockets`.
    pub details: BTreeMap<String, String>,
}

/// Until when a phase may take.
#[derive(Clone, Debug)]
pub struct Deadline {
    phase: String,
    limit: Duration,
    at: Instant,
}

impl Deadline {
    /// From now on, `limit` for `phase`, which every error names.
    pub fn new(phase: impl Into<String>, limit: Duration) -> Deadline {
        Deadline {
            phase: phase.into(),
            limit,
            at: Instant::now() + limit,
        }
    }

    /// A phase within this one: it ends when this one does.
    pub fn part(&self, phase: impl Into<String>) -> Deadline {
        Deadline {
            phase: phase.into(),
            ..self.clone()
        }
    }

    /// The phase's name.
    pub fn phase(&self) -> &str {
        &self.phase
    }

    /// When it passes.
    pub fn at(&self) -> Instant {
        self.at
    }

    /// What is left; `None` when it has passed.
    pub fn remaining(&self) -> Option<Duration> {
        let left = self.at.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// The error of a call that this machine itself refused.
    pub fn local(&self, what: &str, source: std::io::Error) -> TransportError {
        TransportError::Local {
            phase: self.phase.clone(),
            what: what.to_owned(),
            source,
        }
    }

    /// The error of having waited until now, for a rank if one is known.
    pub fn passed(&self, peer: Option<usize>) -> TransportError {
        TransportError::Deadline {
            phase: self.phase.clone(),
            limit: self.limit,
            peer: Who(peer),
            call: Within(None),
        }
    }

    /// The error of a call of a library that did not return in time.
    pub fn passed_in(&self, call: Option<&'static str>) -> TransportError {
        TransportError::Deadline {
            phase: self.phase.clone(),
            limit: self.limit,
            peer: Who(None),
            call: Within(call),
        }
    }
}

/// The call that did not return: prints as ` in ncclAllReduce`, or as nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Within(pub Option<&'static str>);

impl std::fmt::Display for Within {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |call| write!(f, " in {call}"))
    }
}

/// Who was waited for: prints as ` waiting for rank 3`, or as nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who(pub Option<usize>);

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(rank) => write!(f, " waiting for rank {rank}"),
            None => Ok(()),
        }
    }
}

/// Why a transport gave up.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// Time is up.
    #[error("{phase}: not done within {:.1} s{peer}{call}", limit.as_secs_f64())]
    Deadline {
        /// What was under way.
        phase: String,
        /// How long it was given.
        limit: Duration,
        /// The rank that was waited for.
        peer: Who,
        /// The call that did not return.
        call: Within,
    },
    /// A rank's connection broke, or it ended.
    #[error("{phase}: lost rank {peer}: {source}")]
    Lost {
        /// What was under way.
        phase: String,
        /// The rank.
        peer: usize,
        /// What the socket said.
        source: std::io::Error,
    },
    /// A rank sent what nothing of ours sends.
    #[error("{phase}: rank {peer} sent {what}")]
    Garbage {
        /// What was under way.
        phase: String,
        /// The rank.
        peer: usize,
        /// What is wrong with it.
        what: String,
    },
    /// Another rank's account of why a rank is to blame; or that rank's own.
    #[error("{phase}: rank {peer}: {reason}")]
    Aborted {
        /// What was under way.
        phase: String,
        /// The rank.
        peer: usize,
        /// In the words of who saw it.
        reason: String,
    },
    /// Nobody answers where a rank should be.
    #[error("{phase}: rank {peer} not reached at {address}: {source}")]
    Unreached {
        /// What was under way.
        phase: String,
        /// The rank.
        peer: usize,
        /// Where it should listen.
        address: std::net::SocketAddr,
        /// What the last attempt said.
        source: std::io::Error,
    },
    /// A rank turned this one away, or somebody was turned away where a rank was waited for.
    #[error("{phase}: rank {peer} cannot be joined: {reason}")]
    Refused {
        /// What was under way.
        phase: String,
        /// The rank.
        peer: usize,
        /// In the words of who said no.
        reason: String,
    },
    /// This machine's own network calls fail.
    #[error("{phase}: {what}: {source}")]
    Local {
        /// What was under way.
        phase: String,
        /// The call, and on what.
        what: String,
        /// What it said.
        source: std::io::Error,
    },
    /// A library or a device that the transport needs is not there.
    #[error("{transport}: {what} is missing: {tried}")]
    Missing {
        /// `nccl`.
        transport: &'static str,
        /// The library, symbol or device.
        what: String,
        /// Where it was looked for, and what that said.
        tried: String,
    },
    /// A library said no.
    #[error("{phase}: {call}: {message} ({code})")]
    Library {
        /// What was under way.
        phase: String,
        /// The function.
        call: &'static str,
        /// Its result.
        code: i64,
        /// What that means.
        message: String,
    },
    /// The transport cannot do this.
    #[error("{transport} cannot do {what}")]
    Unsupported {
        /// Its name.
        transport: &'static str,
        /// A collective, a type, a size.
        what: String,
    },
}

impl TransportError {
    /// What it says, without the phase and without "rank so-and-so:" of somebody else's account.
    pub fn reason(&self) -> String {
        match self {
            TransportError::Aborted { reason, .. } => reason.clone(),
            other => {
                let text = other.to_string();
                let phase = other.phase().map(|phase| format!("{phase}: "));
                phase
                    .and_then(|phase| text.strip_prefix(&phase).map(str::to_owned))
                    .unwrap_or(text)
            }
        }
    }

    /// What was under way, if anything was.
    pub fn phase(&self) -> Option<&str> {
        match self {
            TransportError::Deadline { phase, .. }
            | TransportError::Lost { phase, .. }
            | TransportError::Garbage { phase, .. }
            | TransportError::Aborted { phase, .. }
            | TransportError::Unreached { phase, .. }
            | TransportError::Refused { phase, .. }
            | TransportError::Local { phase, .. }
            | TransportError::Library { phase, .. } => Some(phase),
            TransportError::Missing { .. } | TransportError::Unsupported { .. } => None,
        }
    }

    /// The rank that it is about, if it is about one.
    pub fn peer(&self) -> Option<usize> {
        match self {
            TransportError::Deadline { peer, .. } => peer.0,
            TransportError::Lost { peer, .. }
            | TransportError::Refused { peer, .. }
            | TransportError::Garbage { peer, .. }
            | TransportError::Aborted { peer, .. }
            | TransportError::Unreached { peer, .. } => Some(*peer),
            TransportError::Local { .. }
            | TransportError::Missing { .. }
            | TransportError::Library { .. }
            | TransportError::Unsupported { .. } => None,
        }
    }
}
