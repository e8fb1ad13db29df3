//! Pushes the current metrics page to an OpenTelemetry receiver, by OTLP 1 over HTTP, as protobuf
//! (<https://opentelemetry.io/docs/specs/otlp/#otlphttp>). The contents are those of the metrics page, with
//! OpenTelemetry's names. All values are either sums since the job began or last readings. The next push therefore
//! supersedes values that were not accepted, and nothing has to be stored or sent twice.

mod convert;
mod names;
mod post;
mod receiver;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use paceline_health::id::{JobId, NodeId};

use self::convert::Conversion;
use self::post::Client;
pub use self::receiver::{OtlpError, Receiver};
use crate::host;
use crate::sink::carrier::Carry;
use crate::sink::metrics::{Facts, Families, JobFacts};
use crate::warn;

/// The outcome of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The push was accepted.
    Sent,
    /// The push was accepted, except for some values that the receiver rejected.
    Partly,
    /// The receiver refused the push.
    Refused,
    /// There was no answer within the timeout.
    Timeout,
    /// There was no receiver, or a temporary error.
    Unreachable,
    /// The push was not started, because the previous one was still in progress.
    Busy,
}

impl Outcome {
    const ALL: [Outcome; 6] = [
        Outcome::Sent,
        Outcome::Partly,
        Outcome::Refused,
        Outcome::Timeout,
        Outcome::Unreachable,
        Outcome::Busy,
    ];

    /// Returns the label value in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Sent => "sent",
            Outcome::Partly => "partly",
            Outcome::Refused => "refused",
            Outcome::Timeout => "timeout",
            Outcome::Unreachable => "unreachable",
            Outcome::Busy => "busy",
        }
    }

    fn is_taken(self) -> bool {
        matches!(self, Outcome::Sent | Outcome::Partly)
    }
}

/// Number of pushes by outcome.
#[derive(Debug, Default)]
pub struct Pushes([AtomicU64; Outcome::ALL.len()]);

impl Pushes {
    /// Counts one push.
    pub fn count(&self, outcome: Outcome) {
        self.0[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns all counts, by outcome.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let count = |outcome: Outcome| self.0[outcome as usize].load(Ordering::Relaxed);
        Outcome::ALL
            .map(|outcome| (outcome.name(), count(outcome)))
            .to_vec()
    }
}

/// Pushes to one receiver.
#[derive(Debug)]
pub struct Pusher {
    receiver: Receiver,
    client: Client,
    pushes: Arc<Pushes>,
    job: JobId,
    node: NodeId,
}

impl Pusher {
    /// Creates a pusher for the facts of `job`, from the aggregator on `node`.
    pub fn new(receiver: Receiver, job: JobId, node: NodeId, pushes: Arc<Pushes>) -> Pusher {
        Pusher {
            client: Client::new(),
            receiver,
            pushes,
            job,
            node,
        }
    }

    /// Pushes once. `by` is the deadline, if there is one.
    fn push(&self, facts: &JobFacts, by: Option<Instant>) -> Outcome {
        let mut conversion = Conversion::new(
            self.receiver.resource(&self.job, &self.node),
            facts.report.began_unix_ms.unwrap_or(0),
            host::unix_ms(),
        );
        facts.families(&mut Families(&mut |family| conversion.add(family)));
        let mut all = Outcome::Sent;
        for request in conversion.requests() {
            let left = by.map_or(Duration::MAX, |by| by.saturating_duration_since(Instant::now()));
            match self.client.send(&self.receiver, &request, left) {
                Ok(0) => {}
                Ok(rejected) => {
                    all = Outcome::Partly;
                    self.warn(all, &format!("rejected {rejected} values of a push"));
                }
                // Stop here, because the remaining requests would fail as well.
                Err((outcome, why)) => {
                    self.warn(outcome, &format!("accepts no metrics: {why}"));
                    return outcome;
                }
            }
        }
        all
    }

    fn warn(&self, outcome: Outcome, what: &str) {
        let whom = self.receiver.whom();
        warn::once(
            format!("otlp {}", outcome.name()),
            format_args!("otlp {whom} {what}; reported once, and counted in paceline_otlp_pushes_total"),
        );
    }
}

/// Retry interval after the end of the job.
const LAST_PAUSE: Duration = Duration::from_millis(300);

impl Carry for Pusher {
    fn carry(&mut self, facts: &JobFacts) {
        self.pushes.count(self.push(facts, None));
    }

    fn last(&mut self, facts: &JobFacts, by: Instant) {
        loop {
            let outcome = self.push(facts, Some(by));
            self.pushes.count(outcome);
            if outcome.is_taken() || outcome == Outcome::Refused {
                return;
            }
            if Instant::now() + LAST_PAUSE >= by {
                return;
            }
            std::thread::sleep(LAST_PAUSE);
        }
    }
}

#[cfg(test)]
#[path = "otlp_tests.rs"]
mod tests;
