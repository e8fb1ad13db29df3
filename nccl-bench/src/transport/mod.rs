//! Transports of collectives. One value of a transport is one rank, and all ranks make the same calls in the same
//! order.
//!
//! Every call blocks at most until its deadline. Its error names the phase and, if known, the rank that it waited for.
//! After an error, a transport can only be aborted ([`Transport::abort`]) or dropped.

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
    /// Returns a description, for the header of the result.
    fn about(&self) -> About;

    /// Returns this rank, counted from 0.
    fn rank(&self) -> usize;

    /// Returns the number of ranks.
    fn ranks(&self) -> usize;

    /// Prepares buffers, links and schedules for `plan`, so that [`Transport::run`] only runs the collective. This
    /// replaces the previous plan.
    fn prepare(&mut self, plan: &Plan, deadline: &Deadline) -> Result<(), TransportError>;

    /// Runs the plan this many times without pauses, and returns this rank's duration of each run. Afterwards the
    /// content of the buffers is undefined (in place, sums grow).
    fn run(&mut self, iterations: u32, deadline: &Deadline) -> Result<Vec<Duration>, TransportError>;

    /// Refills the buffers ([`crate::pattern`]), runs once, and counts the wrong elements of this rank's output.
    fn verify(&mut self, deadline: &Deadline) -> Result<u64, TransportError>;

    /// Returns the maximum of all ranks' values on every rank.
    fn agree(&mut self, value: u64, deadline: &Deadline) -> Result<u64, TransportError>;

    /// Returns when every rank has called this function.
    fn barrier(&mut self, deadline: &Deadline) -> Result<(), TransportError> {
        self.agree(0, deadline).map(|_| ())
    }

    /// Gathers every rank's times on rank 0, in rank order. Other ranks get `None`.
    fn gather(
        &mut self,
        mine: RankTimes,
        deadline: &Deadline,
    ) -> Result<Option<Vec<RankTimes>>, TransportError>;

    /// Gathers the location of every rank on rank 0, in rank order. A transport adds the rank's device if it is known.
    /// By default, rank 0 gets only its own location.
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
    /// The transport's name, which is `tcp`, `nccl` or `sim`.
    pub transport: String,
    /// True if the transport is a simulation.
    pub simulated: bool,
    /// Versions and choices that belong to a result, by names such as `nccl`, `cuda` and `sockets`.
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
    /// Returns a deadline that starts now, with `limit` for `phase`. Every error names the phase.
    pub fn new(phase: impl Into<String>, limit: Duration) -> Deadline {
        Deadline {
            phase: phase.into(),
            limit,
            at: Instant::now() + limit,
        }
    }

    /// Returns the deadline of a phase within this one. Its time is the same.
    pub fn part(&self, phase: impl Into<String>) -> Deadline {
        Deadline {
            phase: phase.into(),
            ..self.clone()
        }
    }

    /// Returns the phase's name.
    pub fn phase(&self) -> &str {
        &self.phase
    }

    /// Returns the time of the deadline.
    pub fn at(&self) -> Instant {
        self.at
    }

    /// Returns the remaining time, or `None` after the deadline.
    pub fn remaining(&self) -> Option<Duration> {
        let left = self.at.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// Returns the error of a failed local system call.
    pub fn local(&self, what: &str, source: std::io::Error) -> TransportError {
        TransportError::Local {
            phase: self.phase.clone(),
            what: what.to_owned(),
            source,
        }
    }

    /// Returns the error of a timeout. If `peer` is given, the error says that this rank was awaited.
    pub fn passed(&self, peer: Option<usize>) -> TransportError {
        TransportError::Deadline {
            phase: self.phase.clone(),
            limit: self.limit,
            peer: Who(peer),
            call: Within(None),
        }
    }

    /// Returns the error of a timeout in a library call.
    pub fn passed_in(&self, call: Option<&'static str>) -> TransportError {
        TransportError::Deadline {
            phase: self.phase.clone(),
            limit: self.limit,
            peer: Who(None),
            call: Within(call),
        }
    }
}

/// The call that did not return. It is formatted as ` in ncclAllReduce`, or empty if there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Within(pub Option<&'static str>);

impl std::fmt::Display for Within {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |call| write!(f, " in {call}"))
    }
}

/// The awaited rank. It is formatted as ` waiting for rank 3`, or empty if there is none.
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
    /// The time limit was reached.
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
    /// A rank reported which rank is at fault. This can be the reporting rank itself.
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
        /// The rank's address.
        address: std::net::SocketAddr,
        /// The error of the last attempt.
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
        /// The name of the transport, `nccl`.
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
        /// The function's result.
        code: i64,
        /// The meaning of the result.
        message: String,
    },
    /// The transport does not support this.
    #[error("{transport} cannot do {what}")]
    Unsupported {
        /// The transport's name.
        transport: &'static str,
        /// The collective, type or size that is not supported.
        what: String,
    },
}

impl TransportError {
    /// Returns the reason without the phase, and without the "rank N:" of another rank's report.
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

    /// Returns the phase, if there is one.
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

    /// Returns the rank that the error is about, if any.
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
