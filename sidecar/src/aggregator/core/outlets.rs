//! Outputs of verdicts besides files: notifications, the live page, and remedies. No output ever affects the detector.

use std::path::Path;
use std::sync::Arc;

use paceline_health::id::JobId;
use paceline_health::report::Report;
use paceline_health::verdict::Verdict;
use paceline_health::{Frame, Policy};

use super::Aggregator;
use crate::host;
use crate::remedy::books::Books;
use crate::remedy::warden::Warden;
use crate::remedy::{RemedyPlan, order::Order};
use crate::sink::metrics::{JobFacts, Metrics, Shown, Transport, Ways};
use crate::sink::notify::{Notifier, PendingNotices};
use crate::sink::page::Live;
use crate::uplink::wire::{Batch, Down, Hello};
use crate::warn;

/// The outputs (see the module). They use wall-clock time, because notifications and actions are remembered for longer
/// than any journal exists.
#[derive(Debug)]
pub struct Outlets {
    notifier: Option<Notifier>,
    warden: Option<Warden>,
    live: Live,
}

impl Outlets {
    /// Opens the outputs of the job with this run directory. `known` is the report from its existing journal.
    pub fn open(dir: &Path, plan: &RemedyPlan, job: &JobId, run: u64, known: &Report) -> Outlets {
        let now_ms = host::unix_ms();
        let notifier = (!plan.receivers.is_empty()).then(|| {
            let mut notifier = Notifier::start(dir, job, &plan.receivers, now_ms);
            notifier.resume(&known.verdicts, now_ms);
            notifier
        });
        let books = Books::new(dir, plan.ledger.clone(), run);
        Outlets {
            notifier,
            warden: Warden::open(plan, books, job, run, now_ms),
            live: Live::default(),
        }
    }

    /// Handles a verdict that was raised, changed or cleared.
    pub fn verdict(&mut self, verdict: &Verdict) {
        if let Some(notifier) = &mut self.notifier {
            notifier.verdict(verdict, host::unix_ms());
        }
        if let Some(warden) = &mut self.warden {
            warden.verdict(verdict);
        }
    }

    /// Adds the actions taken to the report, because the detector does not track them.
    pub fn fill(&self, mut report: Report) -> Report {
        if let Some(warden) = &self.warden {
            report.remedies = warden.told().clone();
        }
        report
    }

    /// Publishes a new report. `dir` is the directory that it is written to.
    fn report(&mut self, report: &Report, policy: &Policy, dir: &str) {
        self.live.report(report, policy, dir);
        if let Some(notifier) = &mut self.notifier {
            notifier.update(report);
        }
    }

    /// Passes on a frame that was journaled.
    pub fn frame(&mut self, frame: &Frame) {
        self.live.frame(frame);
        if let Some(warden) = &mut self.warden {
            warden.frame(frame, host::unix_ms());
        }
    }

    /// Advances time. Called once a second.
    pub fn tick(&mut self, metrics: &Metrics, now_ns: u64) {
        self.live.tick(metrics, now_ns);
        let now_ms = host::unix_ms();
        if let Some(notifier) = &mut self.notifier {
            notifier.tick(now_ms);
        }
        if let Some(warden) = &mut self.warden {
            warden.tick(now_ms);
        }
    }

    /// Closes the outputs at the end of the job.
    pub fn close(self) {
        let pending = self.notifier.map(|notifier| notifier.close(host::unix_ms()));
        for PendingNotices {
            receiver,
            notices,
            dir,
        } in pending.into_iter().flatten()
        {
            let dir = dir.display();
            warn::answer(format_args!(
                "{notices} notices for {receiver} were not accepted, and are kept in {dir}"
            ));
        }
    }
}

impl Aggregator {
    /// Returns the data of the live page.
    pub fn live(&self) -> Live {
        self.outlets.live.clone()
    }

    /// Returns the data behind the metrics. `ways` has the counters of incoming and outgoing traffic.
    pub fn facts(&mut self, ways: Ways, shown: Shown) -> Arc<JobFacts> {
        let transport = Transport {
            duplicates: self.intake.duplicates(),
            unreadable: self.intake.unreadable(),
            ways,
        };
        let (metrics, detector, outlets) = (&self.metrics, &self.detector, &self.outlets);
        let make = || {
            Arc::new(JobFacts {
                metrics: metrics.clone(),
                report: outlets.fill(detector.report()),
                transport,
                shown,
            })
        };
        self.told.get(host::monotonic_ns, make)
    }

    /// Sends compared steps to the live page.
    pub(super) fn show_steps(&mut self) {
        while let Some(seen) = self.detector.poll_seen() {
            let ago_s = self.detector.elapsed_s() - seen.at_s;
            self.outlets.live.step(&seen, ago_s);
        }
    }

    pub(super) fn write_report_if_due(&mut self, now_ns: u64) {
        if now_ns >= self.report_pace.at_ns() {
            self.write_report(now_ns);
        }
    }

    /// Writes the report to its file and to the live page.
    pub(super) fn write_report(&mut self, now_ns: u64) {
        let report = self.report();
        let dir = self.dir.to_string_lossy();
        self.outlets.report(&report, self.detector.policy(), &dir);
        let bytes = self.files.report(&report);
        self.journal.reserve_for(bytes as u64);
        self.report_pace.wrote(bytes, now_ns);
    }

    /// Returns the current order if the sender of this batch has not received it yet.
    pub fn orders(&mut self, batch: &Batch) -> Option<Down> {
        let warden = self.outlets.warden.as_mut()?;
        let order: Option<Order> = warden.order(&batch.node, batch.agent, host::unix_ms());
        order.map(Down::Order)
    }

    /// Handles a new connection of a sidecar. Orders on the old connection may be lost, so they are sent again.
    pub fn orders_again(&mut self, hello: &Hello) {
        if let Some(warden) = &mut self.outlets.warden {
            warden.forget(&hello.node);
        }
    }
}
