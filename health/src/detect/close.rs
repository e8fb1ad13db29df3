//! Closes a row: updates the plan, classifies the step, and runs each rule on it.

use std::sync::Arc;
use std::time::Duration;

use super::Detector;
use super::cause::series::Stamp;
use super::cost::ledger::Stood;
use super::members::roster;
use super::step::matrix::StepMatrix;
use super::step::plan::Plan;
use super::view::view;
use crate::event::{Step, StepKind};
use crate::frame::Frame;
use crate::time::Time;

impl Detector {
    /// Returns the time, journal entry and provenance of a reading.
    pub(super) fn stamp(&self, at: Time, frame: &Frame) -> Stamp {
        Stamp {
            at,
            entry: self.entry,
            provenance: frame.provenance,
        }
    }

    /// Adds a rank's step to the row with its step number.
    pub(super) fn step(&mut self, at: Time, frame: &Frame, step: &Step) {
        if step.restart == self.roster.restart {
            self.straggler.trust(frame.provenance);
            self.waits.need(step);
            self.rows.add(at, self.entry, step);
        }
    }

    /// Closes the rows that are due, and passes each to the rules.
    pub(super) fn close_rows(&mut self, at: Time) {
        let patience = self.patience();
        while let Some(mut row) = self
            .rows
            .take_due(at, patience, |row| self.waits.are_in(row.step))
        {
            self.last_row = self.last_row.max(row.step);
            self.straggler.count(row.has_phases());
            let is_between = self.straggler.is_between_samples();
            self.waits.fill(&mut row, &self.comms, is_between);
            let longest = row.samples().map(|(_, sample)| sample.dur_s).fold(0.0, f64::max);
            let room_s = self.job_rules.ledger().room_s(longest);
            let stood_s = self.silence.stood_in_step(at, room_s);
            // If the long durations of this row come from a reported standstill, no rank is slow because of them.
            let stands = stood_s >= self.policy.detector.silence.suspect_min_s;
            // In a job's first steps an apparent standstill counts as long steps, because the usual step time is not
            // known yet.
            let is_known = self.step_time.p99_s().is_some();
            if row.kind == StepKind::Train && !(stands && is_known) {
                self.step_time.observe(longest);
            }
            self.rank_step(at);
            let mut matrix = StepMatrix::new(&row, &self.plan, &mut self.work);
            let table = &self.policy.detector.straggler;
            if let Some(stages) = self.inference.step(&matrix, &self.comms, table) {
                self.stages = stages;
                self.shape = None;
                self.rank_step(at);
                matrix = StepMatrix::new(&row, &self.plan, &mut self.work);
            }
            self.job_rules
                .sort(&mut matrix, &self.policy.detector, is_between);
            self.times.row(&row, matrix.kind);
            let about = (
                self.seconds(row.opened),
                self.roster.restart,
                self.roster.world_size,
            );
            self.times.see(&row, &matrix, about);
            self.causes.begin_steps();
            let stood = Stood {
                here_s: stood_s,
                left_s: self.silence.stood_s(at),
            };
            self.job_rules.pauses(&view!(self, at), &matrix, stood);
            let stalled = self.job_rules.stalled(&matrix, stood);
            if stands || stalled {
                self.job_rules.stood(&matrix, stood, stalled);
                continue;
            }
            if matrix.kind == StepKind::Train {
                self.comms
                    .judge(&self.plan, &self.policy.detector.link, matrix.step);
            }
            let view = view!(self, at);
            self.straggler.step(&view, &matrix);
            self.links.step(&view, &matrix, self.straggler.raised());
            self.job_rules
                .row(&view, &matrix, &self.straggler, &self.links, stood);
            let late = self.straggler.late();
            self.comms.ask(&late, self.roster.restart, row.step);
        }
    }

    /// Returns how long a row waits for a rank that sends nothing. A sidecar may be seconds late after reconnecting.
    pub(super) fn patience(&self) -> Duration {
        Duration::from_secs_f64((self.step_time.median_s().unwrap_or(1.0) * 10.0).clamp(10.0, 36_000.0))
    }

    /// Rebuilds the plan after ranks joined or declared their place.
    fn rank_step(&mut self, at: Time) {
        if self.shape == Some(self.roster.shape) {
            return;
        }
        self.shape = Some(self.roster.shape);
        let min_peers = self.policy.detector.straggler.min_peers;
        let causes = &self.causes;
        // Use GPU models to distinguish roles only once every GPU was read.
        let known = self
            .roster
            .members()
            .all(|(_, member)| member.gpu.as_ref().is_none_or(|gpu| causes.model(gpu).is_some()));
        let model = |member: &roster::Member| {
            let model = member
                .gpu
                .as_ref()
                .filter(|_| known)
                .and_then(|gpu| causes.model(gpu));
            model.unwrap_or_else(|| Arc::from(""))
        };
        let plan = Plan::new(&self.roster, min_peers, model, &self.stages);
        if !plan.has_roles_of(&self.plan) {
            self.straggler.clear(at, &self.roster, &self.job);
            self.work.clear();
            self.job_rules.on_layout_change();
        }
        self.plan = plan;
        self.comms.rank_step(&self.plan, true);
    }
}
