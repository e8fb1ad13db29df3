//! Exports of metrics besides `/metrics`: pushes to OpenTelemetry, and a file for node_exporter. When the job ends, the
//! metrics are pushed once more and the file is removed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use paceline_health::id::{JobId, NodeId};

use super::carrier::{Carrier, Carry};
use super::metrics::JobFacts;
use super::otlp::{Outcome, Pusher, Pushes, Receiver};
use super::textfile::Textfile;
use crate::warn;

/// Delay of the first export. It is short, so that the job's name is known to receivers almost at once.
const FIRST_NS: u64 = 1_000_000_000;
/// Interval of writing the file.
const FILE_EVERY: Duration = Duration::from_secs(15);
/// Deadline of the last export after the end of the job.
pub const LAST: Duration = Duration::from_millis(2500);

/// The command-line options of the exports, unparsed.
#[derive(Args, Clone, Debug, Default)]
pub struct DoorOptions {
    /// Push metrics to an OpenTelemetry receiver (OTLP over HTTP): its address, or env to use OTEL_EXPORTER_OTLP_*.
    #[arg(long, env = "PACELINE_OTLP", value_name = "ENDPOINT")]
    pub otlp: Option<String>,
    /// Write the metrics page into this file (*.prom) for node_exporter's textfile collector, and remove it at the end.
    #[arg(long, env = "PACELINE_METRICS_TEXTFILE", value_name = "FILE")]
    pub metrics_textfile: Option<PathBuf>,
}

/// The parsed options.
#[derive(Clone, Debug, Default)]
pub struct DoorPlan {
    /// The receiver of pushed metrics.
    pub otlp: Option<Receiver>,
    /// The file to which the page is written.
    pub textfile: Option<PathBuf>,
}

impl DoorOptions {
    /// Parses the options, and reads the environment variables that they refer to.
    ///
    /// # Errors
    /// An invalid option or variable. It is an error because a requested push must not be dropped silently.
    pub fn read(&self) -> anyhow::Result<DoorPlan> {
        let variable = |name: &str| std::env::var(name).ok();
        let asked = self.otlp.as_deref().filter(|asked| !asked.is_empty());
        Ok(DoorPlan {
            otlp: asked.map(|asked| Receiver::of(asked, &variable)).transpose()?,
            textfile: self
                .metrics_textfile
                .clone()
                .filter(|path| !path.as_os_str().is_empty()),
        })
    }
}

/// The active exports.
#[derive(Debug, Default)]
pub struct Doors {
    ways: Vec<Way>,
    pushes: Option<Arc<Pushes>>,
}

#[derive(Debug)]
struct Way {
    whom: String,
    carrier: Carrier,
    every_ns: u64,
    next_ns: u64,
    pushes: Option<Arc<Pushes>>,
}

impl Doors {
    /// Starts the exports of a job whose aggregator is on this node.
    pub fn open(plan: DoorPlan, job: &JobId, node: &NodeId, now_ns: u64) -> Doors {
        let mut doors = Doors::default();
        if let Some(receiver) = plan.otlp {
            let pushes = Arc::<Pushes>::default();
            let (whom, every) = (format!("otlp {}", receiver.whom()), receiver.every);
            let pusher = Pusher::new(receiver, job.clone(), node.clone(), Arc::clone(&pushes));
            doors.pushes = Some(Arc::clone(&pushes));
            doors.add(whom, pusher, every, Some(pushes), now_ns);
        }
        if let Some(path) = plan.textfile {
            let whom = path.display().to_string();
            doors.add(whom, Textfile::new(path), FILE_EVERY, None, now_ns);
        }
        doors
    }

    fn add(
        &mut self,
        whom: String,
        carry: impl Carry,
        every: Duration,
        pushes: Option<Arc<Pushes>>,
        now_ns: u64,
    ) {
        let every_ns = every.as_nanos() as u64;
        match Carrier::start("door", carry) {
            Ok(carrier) => self.ways.push(Way {
                whom,
                carrier,
                every_ns,
                next_ns: now_ns.saturating_add(FIRST_NS.min(every_ns)),
                pushes,
            }),
            Err(error) => warn::once("door", format_args!("{whom}: {error}")),
        }
    }

    /// Exports the current facts to each destination for which an export is due.
    pub fn tick(&mut self, now_ns: u64, facts: impl FnOnce() -> Arc<JobFacts>) {
        if now_ns < self.wakes_at() {
            return;
        }
        let facts = facts();
        for way in self.ways.iter_mut().filter(|way| now_ns >= way.next_ns) {
            way.next_ns = now_ns.saturating_add(way.every_ns);
            if way.carrier.offer(Arc::clone(&facts))
                && let Some(pushes) = &way.pushes
            {
                pushes.count(Outcome::Busy);
            }
        }
    }

    /// Returns the next time at which [`Doors::tick`] has work, CLOCK_MONOTONIC ns.
    pub fn wakes_at(&self) -> u64 {
        let all = self.ways.iter().map(|way| way.next_ns);
        all.min().unwrap_or(u64::MAX)
    }

    /// Returns the number of pushes by outcome, or nothing if no push is configured.
    pub fn pushes(&self) -> Vec<(&'static str, u64)> {
        let pushes = self.pushes.as_ref();
        pushes.map(|pushes| pushes.counts()).unwrap_or_default()
    }

    /// Starts the last exports of a job that has ended, with the deadline `by`. Does not wait for them.
    pub fn end(&self, facts: impl FnOnce() -> Arc<JobFacts>, by: Instant) {
        if self.ways.is_empty() {
            return;
        }
        let facts = facts();
        for way in &self.ways {
            way.carrier.end(Arc::clone(&facts), by);
        }
    }

    /// Waits for the exports that [`Doors::end`] started, but only until `by`.
    pub fn close(self, by: Instant) {
        for way in self.ways {
            if !way.carrier.close(by) {
                let whom = way.whom;
                warn::once(
                    format!("late {whom}"),
                    format_args!("{whom}: the last metrics of the job were not accepted in time"),
                );
            }
        }
    }
}
