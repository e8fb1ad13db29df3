//! The detector turns frames into verdicts. The caller passes the time in.
//!
//! [`Detector::observe`] takes a frame, and [`Detector::advance`] lets time pass. After each call to either, call
//! [`Detector::poll`] until it is empty: it returns what must be reported. [`Detector::wake_at`] returns when `advance`
//! has something to do. Verdicts depend only on the policy and the journal: `observe(at)` first fires every deadline up
//! to `at`, and a verdict carries its deadline instead of the time of the call. It therefore does not matter when the
//! functions are called.

mod cause;
mod claim;
mod close;
mod comm;
mod cost;
mod faults;
mod job;
mod links;
mod liveness;
mod members;
mod report;
mod step;
mod straggler;
#[cfg(test)]
mod tests;
mod view;

use serde::{Deserialize, Serialize};

use self::cause::causes::Causes;
use self::cause::preflight_evidence::PreflightEvidence;
use self::comm::communicators::Comms;
use self::cost::times::Times;
use self::faults::FaultRule;
use self::job::JobRules;
use self::links::LinkRule;
use self::liveness::arrivals::ArrivalRule;
use self::liveness::job_end::JobEnd;
use self::liveness::silence::SilenceRule;
use self::liveness::unreachable_node::UnreachableNodeRule;
use self::members::roster::Roster;
use self::report::incidents::Incidents;
use self::report::journal_gaps::JournalGaps;
use self::report::notes::HookNotes;
use self::step::infer::{Inference, Stages};
use self::step::plan::Plan;
use self::step::rows::Rows;
use self::step::step_time::StepTime;
use self::step::waits::Waits;
use self::step::work::WorkModels;
use self::straggler::StragglerRule;
use self::view::view;
use crate::event::Event;
use crate::frame::{AGGREGATOR, Frame};
use crate::id::JobId;
use crate::policy::Policy;
use crate::time::Time;
use crate::verdict::Verdict;

/// Step numbers above this limit are not plausible, because JSON cannot represent them exactly.
const MAX_STEP: u64 = 1 << 53;

/// The state of the detector, which each frame updates.
#[derive(Debug, Serialize, Deserialize)]
pub struct Detector {
    policy: Policy,
    job: JobId,
    /// Number of journal entries taken so far.
    entry: u64,
    origin: Option<Time>,
    now: Time,
    last_frame: Time,
    roster: Roster,
    rows: Rows,
    last_row: u64,
    step_time: StepTime,
    times: Times,
    /// The plan is rebuilt when the roster's shape has changed.
    plan: Plan,
    shape: Option<u64>,
    /// Infers the stages of ranks that declared none.
    inference: Inference,
    stages: Stages,
    work: WorkModels,
    causes: Causes,
    comms: Comms,
    waits: Waits,
    links: LinkRule,
    straggler: StragglerRule,
    job_rules: JobRules,
    silence: SilenceRule,
    unreachable: UnreachableNodeRule,
    faults: FaultRule,
    preflight: PreflightEvidence,
    /// No node becomes due before this time. It is a lower bound, so that not every frame has to check every node.
    blind_check: Option<Time>,
    incidents: Incidents,
    journal_lost: u64,
    journal_gaps: JournalGaps,
    job_end: JobEnd,
    arrivals: ArrivalRule,
    #[serde(default)]
    hook_notes: HookNotes,
    /// Price of a GPU-hour, with the roster's shape and the number of GPUs for which it was computed.
    price: Option<((u64, usize), Option<f64>)>,
}

impl Detector {
    /// Creates a detector that has no input yet.
    pub fn new(policy: Policy) -> Detector {
        Detector {
            policy,
            job: JobId::from(""),
            entry: 0,
            origin: None,
            now: Time::ZERO,
            last_frame: Time::ZERO,
            roster: Roster::default(),
            rows: Rows::default(),
            last_row: 0,
            step_time: StepTime::new(),
            times: Times::default(),
            plan: Plan::default(),
            shape: None,
            inference: Inference::default(),
            stages: Stages::new(),
            work: WorkModels::default(),
            causes: Causes::default(),
            comms: Comms::default(),
            waits: Waits::default(),
            links: LinkRule::default(),
            straggler: StragglerRule::default(),
            job_rules: JobRules::default(),
            silence: SilenceRule::default(),
            unreachable: UnreachableNodeRule::default(),
            faults: FaultRule::default(),
            preflight: PreflightEvidence::default(),
            blind_check: None,
            incidents: Incidents::default(),
            journal_lost: 0,
            journal_gaps: JournalGaps::default(),
            job_end: JobEnd::default(),
            arrivals: ArrivalRule::default(),
            hook_notes: HookNotes::default(),
            price: None,
        }
    }

    /// Takes the next frame of the journal, after firing every deadline up to `at`. Time never goes back: an `at`
    /// earlier than the latest one is replaced by the latest one.
    pub fn observe(&mut self, at: Time, frame: &Frame) {
        let at = at.max(self.now);
        self.entry += 1;
        self.origin.get_or_insert(at);
        let is_own = frame.agent == AGGREGATOR;
        match &frame.event {
            Event::Job(job) if is_own => self.open(at, &frame.node, job),
            _ => self.fire(at),
        }
        self.now = at;
        self.last_frame = at;
        match &frame.event {
            Event::Job(_) | Event::End(_) => {}
            // Ignore these events unless the aggregator sent them. Only the aggregator decides on them, but anyone with
            // the job's key can send them.
            Event::Policy(_) | Event::Thinned(_) if !is_own => {}
            Event::Policy(change) => {
                // The aggregator rejects invalid changes on request. A journal of another version may still contain
                // one, so the error is ignored.
                let _ = self.policy.apply(&change.key, change.value);
                self.price = None;
                self.incidents.reconsider(&self.policy);
            }
            Event::Thinned(thinned) => self.learn_of_thinning(frame, thinned),
            _ => self.take(at, frame),
        }
        self.record_claims();
    }

    /// Fires every deadline up to `now`.
    pub fn advance(&mut self, now: Time) {
        self.fire(now);
        self.now = self.now.max(now);
        self.record_claims();
    }

    /// Returns the next new or changed verdict, if there is one.
    pub fn poll(&mut self) -> Option<Verdict> {
        let verdict = self.incidents.poll()?;
        let price = self.known_price();
        Some(self.priced(verdict, price))
    }

    /// Returns when [`Detector::advance`] must be called next. That call may find nothing to do.
    pub fn wake_at(&self) -> Option<Time> {
        let rows = self.rows.deadline(self.patience());
        let due = [rows, self.blind_check, self.arrivals_due()];
        due.into_iter().flatten().min()
    }

    /// Takes a frame of a node.
    fn take(&mut self, at: Time, frame: &Frame) {
        if frame.agent == AGGREGATOR && matches!(frame.event, Event::GpuFault(_)) {
            // This frame was entered by hand. It is neither a sign of life from the node's sidecar nor part of the
            // sidecar's sequence.
            return self.observe_faults(at, frame);
        }
        let is_believable = frame.event.step().is_none_or(|step| step < MAX_STEP);
        if !is_believable || self.roster.has_seen(frame) || self.took_late(at, frame) {
            return;
        }
        if self.took_remainder(at, frame) {
            return;
        }
        let frame = &*self.roster.counted(frame);
        let outgoing = self.roster.begins_epoch(&frame.event);
        if outgoing {
            self.straggler.clear(at, &self.roster, &self.job);
            let ranks = self.roster.world_size;
            let resized = matches!(&frame.event, Event::Attach(new) if new.world_size != ranks);
            self.job_rules.begin_epoch(at, &self.job, ranks, resized);
            self.silence.clear(at, self.roster.world_size);
            self.rows.clear();
            self.times.clear_ranks();
            self.causes.clear_ranks();
            self.comms.clear();
            self.waits.clear();
            self.inference.clear();
            self.hook_notes.clear();
            self.stages.clear();
            self.links.clear(at, self.roster.world_size);
            self.faults.begins_epoch(at, &self.job);
        }
        let is_back = self.unreachable.is_open(&frame.node);
        let unheard_since = is_back.then(|| self.roster.last_heard(&frame.node)).flatten();
        self.roster.observe(at, frame);
        if outgoing {
            self.goes_on();
        }
        self.job_rules.on_event(at, frame, &self.roster);
        if let Some(from) = unheard_since {
            for rank in self.roster.ranks_of(&frame.node) {
                self.rows.join(rank, 0);
            }
            self.roster.gaps.add(&frame.node, from, at, "it did not report");
        }
        self.observe_faults(at, frame);
        self.unreachable
            .heard(at, &frame.node, &self.job, frame.provenance);
        let next = self.unreachable.due_after(at, &self.policy.detector.blind);
        self.blind_check = Some(self.blind_check.map_or(next, |check| check.min(next)));
        match &frame.event {
            Event::Attach(attach) if self.roster.member(attach.rank).is_some() => {
                self.arrivals.begin(at, &self.job);
                // An attach with PID 0 comes from a job log. A log covers the whole job, so no other ranks will attach.
                let all = self.roster.world_size;
                self.rows.join(attach.rank, if attach.pid == 0 { 0 } else { all });
            }
            Event::Detach(detach) if detach.restart == self.roster.restart => {
                self.rows.leave(detach.rank);
                self.rows.expect_no_more();
            }
            Event::Exit(_) => {
                for rank in self.roster.placed_on(&frame.node) {
                    self.rows.leave(rank);
                }
                self.rows.expect_no_more();
                self.arrivals.node_ended(at, &frame.node);
                self.look_for_silence(at, frame);
            }
            Event::Step(step) => self.step(at, frame, step),
            Event::Mark(mark) => self.hook_notes.take(mark),
            Event::Gpu(reading) => {
                if self.causes.gpu(self.stamp(at, frame), reading) {
                    self.shape = None;
                }
                self.straggler.reading(&view!(self, at), |_, member| {
                    member.gpu.as_ref() == Some(&reading.gpu)
                });
            }
            Event::Host(reading) => {
                self.causes.host(self.stamp(at, frame), &frame.node, reading);
                self.straggler.reading(&view!(self, at), |rank, member| {
                    member.node == frame.node && reading.rank.is_none_or(|read| read == rank)
                });
            }
            Event::Group(group) if group.restart == self.roster.restart => self.comms.join(group),
            Event::Comm(did) if did.restart == self.roster.restart => {
                self.links.trust(frame.provenance);
                if let Some(size) = self.comms.add(did) {
                    self.waits.add(did, size);
                }
            }
            Event::Collectives(did) if did.restart == self.roster.restart => self.comms.meet(did),
            Event::Preflight(_)
            | Event::Bench(_)
            | Event::PreflightFinding(_)
            | Event::PreflightProblem(_) => {
                self.preflight.observe(self.entry, frame);
            }
            Event::Beat(_) | Event::Ras(_) | Event::Trouble(_) | Event::Stacks(_) | Event::Entered(_) => {
                self.look_for_silence(at, frame)
            }
            Event::Start(start) => self.arrive(at, frame, start),
            _ => {}
        }
        self.close_rows(at);
    }

    /// Fires deadlines in order.
    fn fire(&mut self, to: Time) {
        if !self.has_heard_up_to(to) {
            return;
        }
        loop {
            let row = self.rows.deadline(self.patience()).filter(|due| *due <= to);
            let blind = self.blind_check.filter(|due| *due <= to);
            if self.fired_arrivals(to, row, blind) {
                continue;
            }
            match (row, blind) {
                (None, None) => return,
                (Some(row), blind) if blind.is_none_or(|blind| row <= blind) => {
                    // A deadline may have moved into the past, because steps became shorter. It fires now and not at
                    // the earlier time.
                    self.close_rows(row.max(self.now));
                }
                (_, Some(blind)) => {
                    let limits = &self.policy.detector.blind;
                    let unseen = self.unreachable.advance(blind, &self.roster, &self.job, limits);
                    self.blind_check = self.unreachable.wake_at(&self.roster, limits);
                    // Ranks on unreachable nodes leave the rows, so that the steps of the other ranks do not wait for
                    // them.
                    for rank in unseen.iter().flat_map(|node| self.roster.ranks_of(node)) {
                        self.rows.leave(rank);
                    }
                    self.close_rows(blind);
                }
                _ => return,
            }
            self.record_claims();
        }
    }

    fn seconds(&self, at: Time) -> f64 {
        report::incidents::round(at.since(self.origin.unwrap_or_default()).as_secs_f64())
    }
}
