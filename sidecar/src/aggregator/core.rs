//! The aggregator proper: takes batches of frames, and writes the journal and the verdicts.

mod asks;
mod changes;
mod fold;
mod held_up;
mod outlets;
mod pace;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use paceline_health::event::{End, Event};
use paceline_health::frame::SCHEMA_VERSION;
use paceline_health::id::NodeId;
use paceline_health::report::Report;
use paceline_health::{Detector, Entry, Frame, Provenance};

use self::changes::Said;
use self::fold::{Fold, Presence, lasts, presence};
use self::outlets::Outlets;
use self::pace::Pace;
use super::Plan;
use super::clock::Clock;
use super::inject::Injector;
use super::journal::{Journal, JournalError, Medium, on_disk};
use crate::host;
use crate::sink::files::{self, Files};
use crate::sink::metrics::{JobFacts, Kept, Metrics};
use crate::sink::page::STEPS_IN_WAITING;
use crate::sink::status::{Status, StatusStream};
use crate::uplink::Intake;
use crate::uplink::wire::{Ack, Batch, Down, Hello, Refused, Welcome};
use crate::warn;

/// Interval of status lines.
const PROGRESS_EVERY_NS: u64 = 1_000_000_000;
/// Maximum number of notes reported while the job runs. There is a limit because each may come from another node.
const MOST_NOTED: usize = 16;
/// Incarnation under which the aggregator's own events (job, policy, end, injected faults) are recorded in the journal.
pub const OWN_AGENT: u64 = paceline_health::frame::AGGREGATOR;

/// The aggregator of one job.
#[derive(Debug)]
pub struct Aggregator {
    plan: Plan,
    dir: PathBuf,
    journal: Journal,
    clock: Clock,
    intake: Intake,
    detector: Detector,
    injector: Injector,
    metrics: Metrics,
    files: Files,
    status: StatusStream,
    /// Notes that were already written to the status stream.
    noted: BTreeSet<String>,
    outlets: Outlets,
    nodes: BTreeMap<NodeId, Presence>,
    /// The values in the configuration files when the policy in force was read from them.
    known_of_files: Vec<(String, f64)>,
    /// The sources of policy values, from the journal.
    said: Said,
    /// Bytes of the last snapshot.
    snapshot_bytes: usize,
    /// By node: the sidecar incarnation that got the last request for single collectives, and the request count then.
    asked: BTreeMap<NodeId, (u64, u64)>,
    last_n: u64,
    own_seq: u64,
    reported_lost: u64,
    report_pace: Pace,
    told: Kept<Arc<JobFacts>>,
    /// When the aggregator last read the clock.
    awake_ns: u64,
    progress_at_ns: u64,
}

impl Aggregator {
    /// Opens the run directory. Continues a journal of this job that was not closed. If another aggregator writes
    /// there, uses a separate directory of this node inside it.
    ///
    /// # Errors
    /// [`JournalError`]
    pub fn open(plan: Plan, status: StatusStream, now_ns: u64) -> Result<Aggregator, JournalError> {
        Aggregator::open_on(plan, status, now_ns, &mut on_disk)
    }

    /// Like [`Aggregator::open`], but with the journal on the caller's medium.
    ///
    /// # Errors
    /// [`JournalError`]
    pub fn open_on(
        plan: Plan,
        status: StatusStream,
        now_ns: u64,
        medium: &mut Medium<'_>,
    ) -> Result<Aggregator, JournalError> {
        match Aggregator::open_in(
            &plan.run_dir.clone(),
            plan.clone(),
            status.clone(),
            now_ns,
            medium,
        ) {
            Err(JournalError::Taken(dir, by)) => {
                let alone = dir.join(format!("alone-{}", plan.node.as_str().replace('/', "_")));
                warn::once(
                    "run dir",
                    format_args!(
                        "{}: {by} writes here: writing to {}",
                        dir.display(),
                        alone.display()
                    ),
                );
                Aggregator::open_in(&alone, plan, status, now_ns, medium)
            }
            opened => opened,
        }
    }

    fn open_in(
        dir: &Path,
        plan: Plan,
        status: StatusStream,
        now_ns: u64,
        medium: &mut Medium<'_>,
    ) -> Result<Aggregator, JournalError> {
        let mut fold = Fold::new();
        let journal = Journal::open_on(dir, (&plan.job, &plan.node), &mut fold, medium, plan.journal)?;
        if fold.misses_history {
            files::lay_aside(dir);
        }
        let (last_n, last_at) = fold.last.map_or((0, None), |(n, at)| (n, Some(at)));
        let mut clock = Clock::open(dir, last_at, host::boot_id(), host::incarnation(), now_ns);
        if fold.has_holes {
            clock.renumber(dir, host::incarnation());
        }
        let outlets = Outlets::open(
            dir,
            &plan.remedy,
            &plan.job,
            clock.journal(),
            &fold.detector.report(),
        );
        let mut aggregator = Aggregator {
            dir: dir.to_owned(),
            files: Files::open(dir, fold.verdict_bytes),
            known_of_files: fold.said.known_of_files(&plan),
            said: fold.said,
            snapshot_bytes: 0,
            plan,
            journal,
            clock,
            intake: fold.intake,
            detector: fold.detector,
            injector: fold.injector,
            metrics: fold.metrics,
            status,
            noted: BTreeSet::new(),
            outlets,
            nodes: fold.nodes,
            asked: BTreeMap::new(),
            last_n,
            own_seq: fold.own_seq,
            reported_lost: 0,
            report_pace: Pace::new(now_ns),
            told: Kept::default(),
            awake_ns: now_ns,
            progress_at_ns: now_ns,
        };
        // Verdicts that are already in the journal are written to the file again, but not sent to the launcher.
        while let Some(verdict) = aggregator.detector.poll() {
            aggregator.files.verdict(&verdict);
        }
        aggregator.begin(now_ns);
        Ok(aggregator)
    }

    /// Writes the first entries after a journal is opened.
    fn begin(&mut self, now_ns: u64) {
        self.detector.watch_steps(STEPS_IN_WAITING);
        self.say_whose(None, now_ns);
        self.start_policy(now_ns);
        self.write_report(now_ns);
    }

    /// Answers a sidecar that wants to join.
    pub fn hello(&self, hello: &Hello) -> Down {
        if let Some(why) = hello.refusal(&self.plan.job) {
            return Down::Refused(Refused { why });
        }
        Down::Welcome(Welcome {
            v: SCHEMA_VERSION,
            job: self.plan.job.clone(),
            agent: hello.agent,
            journal: self.clock.journal(),
            upto: self.intake.upto(&hello.node, hello.agent),
        })
    }

    /// Accepts a batch. The answer is sent only after the batch is in the journal.
    pub fn take(&mut self, batch: &Batch, now_ns: u64) -> Down {
        let claim = Hello {
            v: batch.v,
            job: batch.job.clone(),
            node: batch.node.clone(),
            agent: batch.agent,
        };
        if let Some(why) = claim.refusal(&self.plan.job) {
            return Down::Refused(Refused { why });
        }
        self.wake(now_ns);
        let taken = self.intake.offer(batch);
        self.record(taken.frames, now_ns);
        Down::Ack(Ack {
            v: SCHEMA_VERSION,
            job: batch.job.clone(),
            agent: batch.agent,
            upto: taken.upto,
        })
    }

    /// Writes frames to the journal in their final order, and passes them to the detector.
    fn record(&mut self, frames: Vec<Frame>, now_ns: u64) {
        let at_ns = self.clock.at(now_ns);
        let mut entries = Vec::with_capacity(frames.len());
        for mut frame in frames {
            self.injector.alter(&mut frame, now_ns);
            self.last_n += 1;
            entries.push(Entry {
                n: self.last_n,
                at_ns,
                frame,
            });
        }
        self.journal.append(&entries, now_ns);
        let lost = self.journal.lost();
        if lost > self.reported_lost {
            self.detector.note_journal_lost(lost - self.reported_lost);
            self.reported_lost = lost;
        }
        let unix_s = host::unix_ms() as f64 / 1e3;
        let steps = self.detector.steps();
        let mut told = false;
        for entry in &entries {
            presence(&mut self.nodes, &entry.frame);
            self.said.learn(&entry.frame);
            self.metrics.observe(&entry.frame, unix_s);
            self.outlets.frame(&entry.frame);
            self.detector.read(entry);
            told |= self.tell();
        }
        if !entries.is_empty() {
            self.report_pace.came();
        }
        if told || entries.iter().any(|entry| lasts(&entry.frame.event)) {
            self.journal.commit(now_ns);
        }
        if told {
            self.files.commit();
            self.report_pace.found();
        }
        self.write_report_if_due(now_ns);
        self.close_segment(self.detector.steps() > steps, now_ns);
    }

    /// Records an event of the aggregator itself.
    fn own(&mut self, event: Event, now_ns: u64) {
        let frame = self.own_frame(event);
        self.record(vec![frame], now_ns);
    }

    fn own_frame(&mut self, event: Event) -> Frame {
        self.own_seq += 1;
        Frame {
            v: SCHEMA_VERSION,
            node: self.plan.node.clone(),
            agent: OWN_AGENT,
            seq: self.own_seq,
            provenance: Provenance::Live,
            event,
        }
    }

    /// Publishes new verdicts. Returns true if there were any. The caller then writes the report once for all of them.
    fn tell(&mut self) -> bool {
        let mut any = false;
        while let Some(verdict) = self.detector.poll() {
            self.files.verdict(&verdict);
            self.outlets.verdict(&verdict);
            self.status.say(&Status::Verdict(Box::new(verdict)));
            any = true;
        }
        self.show_steps();
        any
    }

    /// Advances time. Handles due deadlines of the detector, the report, and the status line.
    pub fn tick(&mut self, now_ns: u64) {
        self.wake(now_ns);
        self.journal.commit_due(now_ns);
        self.tell_thinned(now_ns);
        let at = self.clock.at(now_ns);
        if self.detector.wake_at().is_some_and(|wake| wake <= at) {
            self.detector.advance(at);
            if self.tell() {
                self.journal.commit(now_ns);
                self.files.commit();
                self.report_pace.found();
            }
        }
        self.write_report_if_due(now_ns);
        if now_ns >= self.progress_at_ns {
            self.progress_at_ns = now_ns + PROGRESS_EVERY_NS;
            self.outlets.tick(&self.metrics, now_ns);
            for (about, note) in self.detector.live_notes(at) {
                if self.noted.len() < MOST_NOTED && self.noted.insert(about) {
                    self.status.say(&Status::Note(note));
                }
            }
            self.status.say(&Status::Progress {
                step: self.detector.steps(),
                ranks: self.detector.ranks_seen(),
                median_step_s: self.detector.median_step_s(),
            });
        }
    }

    /// Returns how long it takes until [`Aggregator::tick`] has something to do.
    pub fn idle_for(&mut self, now_ns: u64) -> Duration {
        let at = self.clock.at(now_ns);
        let deadline = self
            .detector
            .wake_at()
            .map_or(u64::MAX, |wake| wake.since(at).as_nanos() as u64);
        let commit_at_ns = self.journal.commits_at().unwrap_or(u64::MAX);
        let due_ns = self
            .progress_at_ns
            .min(commit_at_ns)
            .min(self.report_pace.at_ns())
            .saturating_sub(now_ns);
        Duration::from_nanos(deadline.min(due_ns))
    }

    /// Returns the report so far.
    pub fn report(&self) -> Report {
        self.outlets.fill(self.detector.report())
    }

    /// Returns the directory that the aggregator writes to.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Publishes the address of the metrics page.
    pub fn metrics_address(&mut self, address: &str) {
        self.files.metrics_address(address);
    }

    /// Returns the nodes that joined and have not sent a goodbye.
    pub fn present(&self) -> Vec<NodeId> {
        self.nodes
            .iter()
            .filter(|(_, node)| !node.gone)
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// Closes the journal cleanly.
    pub fn end(&mut self, now_ns: u64) {
        self.wake(now_ns);
        let at = self.clock.at(now_ns);
        self.detector.advance(at);
        self.tell();
        let missing = self.present();
        self.own(Event::End(End { missing }), now_ns);
        self.journal.close();
        self.write_report(now_ns);
        self.files.close();
        // Facts that were cached before the end are outdated.
        self.told = Kept::default();
    }

    /// Waits a moment for pending notifications. Must be the last call.
    pub fn leave(self) {
        self.outlets.close();
    }

    /// Calls [`Aggregator::end`], then [`Aggregator::leave`].
    pub fn close(mut self, now_ns: u64) {
        self.end(now_ns);
        self.leave();
    }
}

#[cfg(test)]
#[path = "core_tests.rs"]
mod tests;
