//! The report: the results so far, and the amount of data on which they are based.

use super::incidents::{hours, renew, round};
use crate::detect::Detector;
use crate::detect::liveness::job_end;
use crate::detect::members::endings;
use crate::policy::Policy;
use crate::report::step_snapshot::StepSnapshot;
use crate::report::{Coverage, Ending, Gap, NodeExit, REPORT_VERSION, Report, Undecided};
use crate::verdict::{Finding, State, Subject, Verdict};

impl Detector {
    /// Records frames that reached the detector but not the journal.
    pub fn note_journal_lost(&mut self, frames: u64) {
        self.journal_lost += frames;
    }

    /// Returns the policy in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the report so far. The cost of an incident that is still open runs up to now.
    pub fn report(&self) -> Report {
        let exits = self.roster.nodes().filter_map(|(name, node)| {
            Some(NodeExit {
                node: name.clone(),
                code: node.exit?,
            })
        });
        let price = self.gpu_hour_price();
        let mut verdicts: Vec<Verdict> = self
            .incidents
            .all()
            .map(|verdict| self.priced(self.with_cost_now(verdict), price))
            .collect();
        let undecided = self
            .straggler
            .undecided(&self.plan, &self.policy.detector.straggler);
        let end = self
            .end()
            .map(|end| endings::waited(end, &verdicts, self.seconds(self.last_frame)));
        job_end::mark_unresolved(&mut verdicts, end.as_ref());
        Report {
            schema_version: REPORT_VERSION,
            job: self.job.clone(),
            world_size: match self.roster.world_size {
                0 => self.arrivals.world_size(),
                known => known,
            },
            steps: self.last_row,
            median_step_s: self.step_time.median_s(),
            times: self.times.told(),
            duration_s: self.elapsed_s(),
            last_step_s: self.rows.ended().map(|at| self.seconds(at)),
            exits: exits.collect(),
            coverage: self.coverage(undecided.as_ref()),
            undecided,
            cost: self.cost(&verdicts),
            verdicts,
            stacks: self.silence.stacks(|at| self.seconds(at)),
            preflight: self.preflight.section(),
            end,
            remedies: Default::default(),
            began_unix_ms: self.job_rules.versions().began_unix_ms(),
            versions: self.job_rules.versions().told(),
            gpu_means: self.causes.activity().told(),
            history: self.times.history(),
        }
    }

    /// Returns why the job ended, if it has.
    fn end(&self) -> Option<Ending> {
        let open: Vec<_> = self
            .roster
            .nodes()
            .filter(|(_, node)| node.exit.is_none() && !node.left)
            .map(|(name, _)| (name.clone(), self.unreachable.is_open(name)))
            .collect();
        self.roster.endings.judge(&open)
    }

    /// Returns the last step that was assembled from all ranks.
    pub fn steps(&self) -> u64 {
        self.last_row
    }

    /// Returns the time from the first frame to the last, in seconds.
    pub fn elapsed_s(&self) -> f64 {
        self.seconds(self.last_frame)
    }

    /// Returns the number of ranks that declared themselves in this epoch, before or after their first step.
    pub fn ranks_seen(&self) -> u32 {
        let starting = self.arrivals.ranks();
        let starting = starting.filter(|rank| self.roster.member(*rank).is_none());
        (self.roster.members().count() + starting.count()) as u32
    }

    /// Returns the median duration of an ordinary step so far, in seconds.
    pub fn median_step_s(&self) -> Option<f64> {
        self.step_time.median_s()
    }

    /// Keeps up to `most` compared steps for [`Detector::poll_seen`]. The initial value is zero, which keeps none.
    pub fn watch_steps(&mut self, most: usize) {
        self.times.lately.keep(most);
    }

    /// Returns the next compared step, if there is one. Verdicts do not depend on these calls.
    pub fn poll_seen(&mut self) -> Option<StepSnapshot> {
        self.times.lately.poll()
    }

    fn with_cost_now(&self, verdict: &Verdict) -> Verdict {
        let mut verdict = verdict.clone();
        match (&verdict.finding, &verdict.subject) {
            _ if verdict.state == State::Cleared => {}
            (Finding::Straggler | Finding::StragglerNode | Finding::AllRanksSlow, subject) => {
                let ranks = self.roster.world_size;
                let outcome = self
                    .straggler
                    .outcome_now(verdict.finding, subject, &self.roster, &self.job)
                    .or_else(|| self.job_rules.outcome_now(verdict.finding, subject, ranks));
                if let Some(outcome) = outcome {
                    renew(&mut verdict, outcome);
                }
            }
            (Finding::RankSilent | Finding::JobHang | Finding::RankDied, subject) => {
                if let (Finding::RankDied, Subject::Rank { rank, .. }) = (verdict.finding, subject) {
                    // Use the later step, because the rank's last steps may arrive after its end.
                    verdict.since_step = verdict.since_step.max(self.roster.step_of(*rank));
                }
                let cost = self
                    .silence
                    .cost_now(subject, self.last_frame, self.roster.world_size);
                verdict.lost_gpu_hours = cost.map_or(verdict.lost_gpu_hours, hours);
            }
            (Finding::SlowLink, subject) => {
                if let Some(outcome) = self.links.outcome_now(subject, self.roster.world_size) {
                    renew(&mut verdict, outcome);
                }
            }
            (finding, subject) if self.retrain_s(*finding, subject).is_some() => {
                let again_s = self.retrain_s(*finding, subject);
                verdict.lost_gpu_hours = again_s.map_or(verdict.lost_gpu_hours, hours);
            }
            (finding, subject) => {
                let ranks = self.roster.world_size;
                if let Some(outcome) = self.job_rules.outcome_now(*finding, subject, ranks) {
                    renew(&mut verdict, outcome);
                }
            }
        }
        verdict
    }

    /// Returns the work that must be repeated so far because results may be wrong.
    pub(crate) fn retrain_s(&self, finding: Finding, subject: &Subject) -> Option<f64> {
        let ranks = self.roster.world_size;
        self.faults.retrain_s(finding, subject, self.last_frame, ranks)
    }

    fn coverage(&self, undecided: Option<&Undecided>) -> Coverage {
        let (mut expected, mut received) = (0_u64, 0_u64);
        for (_, member) in self.roster.members() {
            if let Some(first) = member.first_step {
                // A rank that has not detached is expected to be as far as the others.
                let last = if member.ended {
                    member.last_step
                } else {
                    member.last_step.max(self.last_row)
                };
                expected += last.saturating_sub(first) + 1;
                received += member.steps;
            }
        }
        let (ring_dropped, ring_torn) = self.roster.ring_losses();
        let mut gaps: Vec<Gap> = self
            .roster
            .gaps
            .iter()
            .map(|gap| Gap {
                node: gap.node.clone(),
                from_s: self.seconds(gap.from),
                to_s: Some(self.seconds(gap.to)),
                why: std::sync::Arc::from(&*gap.why),
            })
            .collect();
        for (name, node) in self
            .roster
            .nodes()
            .filter(|(name, _)| self.unreachable.is_open(name))
        {
            let (node, from_s) = (name.clone(), self.seconds(node.last_heard));
            gaps.push(Gap {
                node,
                from_s,
                to_s: None,
                why: "it does not report".into(),
            });
        }
        Coverage {
            steps_ratio: (expected > 0).then(|| round((received as f64 / expected as f64).min(1.0))),
            ranks_seen: self.ranks_seen(),
            ranks_expected: self
                .roster
                .world_size
                .max(self.arrivals.world_size())
                .max(self.ranks_seen()),
            signals: self.roster.signals.clone(),
            frames_lost: self.frames_lost(),
            ring_dropped,
            ring_torn,
            journal_lost: self.journal_lost,
            gaps,
            notes: self.notes(undecided).into_iter().map(Into::into).collect(),
        }
    }
}
