//! Transports of collectives. One value is one rank; all ranks make the same calls in the same order.
//!
//! Every call blocks until its deadline at most: the error names the phase and, if known, the rank that it waited for.
//! After an error only [`Transport::abort`] and dropping are useful.

pub mod nccl;
pub mod sim;
pub mod tcp;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::collective::Plan;
use crate::measure::{RankPlace, RankTimes};

/// One rank's end of a transport.
pub trait Transport: Send {
    /// Its description, for the header of the result.
    fn about(&self) -> About;

    /// This rank, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn ranks(&self) -> usize;

    /// Prepares buffers, links and schedules for `plan`, so that [`Transport::run`] only runs the collective. Replaces
    /// the previous plan.
    fn prepare(&mut self, plan: &Plan, deadline: &Deadline) -> Result<(), TransportError>;

    /// Runs the plan this many times without pauses, and returns this rank's duration of each. The buffers are
    /// undefined afterwards (in place, sums grow).
    fn run(&mut self, iterations: u32, deadline: &Deadline) -> Result<Vec<Duration>, TransportError>;

    /// Refills the buffers ([`crate::pattern`]), runs once, and counts the wrong elements of this rank's output.
    fn verify(&mut self, deadline: &Deadline) -> Result<u64, TransportError>;

    /// Returns the maximum of all ranks' values on every rank.
    fn agree(&mut self, value: u64, deadline: &Deadline) -> Result<u64, TransportError>;

    /// Returns when every rank has called it.
    fn barrier(&mut self, deadline: &Deadline) -> Result<(), TransportError> {
        self.agree(0, deadline).map(|_| ())
    }

    /// Gathers every rank's times on rank 0, in rank order; `None` on other ranks.
    fn gather(
        &mut self,
        mine: RankTimes,
        deadline: &Deadline,
    ) -> Result<Option<Vec<RankTimes>>, TransportError>;

    /// Gathers the location of every rank on rank 0, in rank order; a transport adds the rank's device if known. By
    /// default rank 0 only has its own.
    fn places(
        &mut self,
        mine: RankPlace,
        _deadline: &Deadline,
    ) -> Result<Option<Vec<RankPlace>>, TransportError> {
        Ok((self.rank() == 0).then(|| vec![mine]))
    }

    /// Aborts immediately, so that peers that wait for this rank notice.
    fn abort(&mut self);
}

/// Description of a transport.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// `tcp`, `nccl`, `sim`.
    pub transport: String,
    /// Whether it is a simulation.
    pub simulated: bool,
    /// Versions and choices that belong to a result, by name: `nccl`, `cuda`, `sockets`.
    pub details: BTreeMap<String, String>,
}

/// The deadline of a phase.
#[derive(Clone, Debug)]
pub struct Deadline {
    phase: String,
    limit: Duration,
    at: Instant,
}

impl Deadline {
    /// Starts now, with `limit` for `phase`, which every error names.
    pub fn new(phase: impl Into<String>, limit: Duration) -> Deadline {
        Deadline {
            phase: phase.into(),
            limit,
            at: Instant::now() + limit,
        }
    }

    /// A phase within this one, with the same deadline.
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

    /// The time of the deadline.
    pub fn at(&self) -> Instant {
        self.at
    }

    /// Remaining time; `None` after the deadline.
    pub fn remaining(&self) -> Option<Duration> {
        let left = self.at.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// The error of a failed local system call.
    pub fn local(&self, what: &str, source: std::io::Error) -> TransportError {
        TransportError::Local {
            phase: self.phase.clone(),
            what: what.to_owned(),
            source,
        }
    }

    /// The error of a timeout, while waiting for a rank if one is given.
    pub fn passed(&self, peer: Option<usize>) -> TransportError {
        TransportError::Deadline {
            phase: self.phase.clone(),
            limit: self.limit,
            peer: Who(peer),
            call: Within(None),
        }
    }

    /// The error of a timeout in a library call.
    pub fn passed_in(&self, call: Option<&'static str>) -> TransportError {
        TransportError::Deadline {
            phase: self.phase.clone(),
            limit: self.limit,
            peer: Who(None),
            call: Within(call),
        }
    }
}

/// The call that did not return: formatted as ` in ncclAllReduce`, or empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Within(pub Option<&'static str>);

impl std::fmt::Display for Within {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |call| write!(f, " in {call}"))
    }
}

/// The awaited rank: formatted as ` waiting for rank 3`, or empty.
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

/// Why a transport failed.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// Timeout.
    #[error("{phase}: not done within {:.1} s{peer}{call}", limit.as_secs_f64())]
    Deadline {
        /// The phase.
        phase: String,
        /// The time limit.
        limit: Duration,
        /// The awaited rank.
        peer: Who,
        /// The call that did not return.
        call: Within,
    },
    /// A rank's connection broke, or its process ended.
    #[error("{phase}: lost rank {peer}: {source}")]
    Lost {
        /// The phase.
        phase: String,
        /// The rank.
        peer: usize,
        /// The socket's error.
        source: std::io::Error,
    },
    /// A rank sent an invalid message.
    #[error("{phase}: rank {peer} sent {what}")]
    Garbage {
        /// The phase.
        phase: String,
        /// The rank.
        peer: usize,
        /// The error.
        what: String,
    },
    /// The rank at fault according to another rank, or to itself.
    #[error("{phase}: rank {peer}: {reason}")]
    Aborted {
        /// The phase.
        phase: String,
        /// The rank.
        peer: usize,
        /// The reason from the reporting rank.
        reason: String,
    },
    /// A rank's address is unreachable.
    #[error("{phase}: rank {peer} not reached at {address}: {source}")]
    Unreached {
        /// The phase.
        phase: String,
        /// The rank.
        peer: usize,
        /// Its address.
        address: std::net::SocketAddr,
        /// Error of the last attempt.
        source: std::io::Error,
    },
    /// A rank rejected this one, or a connection was rejected while a rank was awaited.
    #[error("{phase}: rank {peer} cannot be joined: {reason}")]
    Refused {
        /// The phase.
        phase: String,
        /// The rank.
        peer: usize,
        /// The reason for the rejection.
        reason: String,
    },
    /// A local network call failed.
    #[error("{phase}: {what}: {source}")]
    Local {
        /// The phase.
        phase: String,
        /// The call and its object.
        what: String,
        /// The error.
        source: std::io::Error,
    },
    /// A required library or device is missing.
    #[error("{transport}: {what} is missing: {tried}")]
    Missing {
        /// `nccl`.
        transport: &'static str,
        /// The library, symbol or device.
        what: String,
        /// The search paths and their errors.
        tried: String,
    },
    /// A library call failed.
    #[error("{phase}: {call}: {message} ({code})")]
    Library {
        /// The phase.
        phase: String,
        /// The function.
        call: &'static str,
        /// Its result.
        code: i64,
        /// Its meaning.
        message: String,
    },
    /// The transport does not support this.
    #[error("{transport} cannot do {what}")]
    Unsupported {
        /// Its name.
        transport: &'static str,
        /// The collective, type or size.
        what: String,
    },
}

impl TransportError {
    /// The reason without the phase, and without the "rank N:" of another rank's report.
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

    /// The phase, if there is one.
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

    /// The rank that it is about, if any.
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
