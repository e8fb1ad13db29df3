//! The cost of the job so far, by cause of the loss.

pub mod ledger;
pub mod times;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Detector;
use super::report::incidents::{hours, round};
use crate::report::{Cost, OVERHEADS};
use crate::verdict::{Cause, Finding, State, Verdict};

impl Detector {
    /// Returns what the job used and lost so far. `verdicts` carry their losses up to now.
    pub(super) fn cost(&self, verdicts: &[Verdict]) -> Cost {
        let ledger = self.job_rules.ledger();
        let gpu_hours = hours(ledger.total(self.last_frame));
        let mut by_cause: BTreeMap<Arc<str>, f64> = BTreeMap::new();
        let mut add = |name: &str, hours: f64| {
            if hours > 0.0 {
                *by_cause.entry(name.into()).or_default() += hours;
            }
        };
        let mut within = BTreeMap::new();
        // Work to be repeated is lost only when the job rolls back, and then it counts as part of the restart.
        let is_lost = |verdict: &&Verdict| {
            let holds = verdict.state == State::Raised;
            !holds || self.retrain_s(verdict.finding, &verdict.subject).is_none()
        };
        for verdict in verdicts.iter().filter(is_lost) {
            add(name(verdict), verdict.lost_gpu_hours);
            *within.entry(verdict.finding).or_insert(0.0) += verdict.lost_gpu_hours;
        }
        // Subtract the part that belongs to a separate incident.
        let beside = |rank_s: f64, finding| hours(rank_s) - within.get(&finding).copied().unwrap_or(0.0);
        let left_ratio = self.job_rules.remaining_ratio(&self.straggler);
        let overheads = [
            beside(ledger.checkpoint, Finding::SlowCheckpoint),
            beside(ledger.warm_up, Finding::SlowWarmUp),
            hours(ledger.restart),
            hours(ledger.stalled(left_ratio)),
            hours(ledger.pause),
        ];
        for (name, hours) in OVERHEADS.into_iter().zip(overheads) {
            add(name, hours);
        }
        // Add 0.0, because the sum of an empty list is -0.0.
        let lost = (by_cause.values().sum::<f64>() + 0.0).min(gpu_hours);
        let price = self.gpu_hour_price();
        let usual_s = ledger.usual_s();
        let stood_s = self.silence.stood_s(self.last_frame);
        let settled = gpu_hours - hours(ledger.unsettled(self.last_frame, stood_s));
        Cost {
            gpu_hours,
            lost_gpu_hours: (lost * 1e9).round() / 1e9,
            by_cause: by_cause
                .into_iter()
                .map(|(name, lost)| (name, (lost * 1e9).round() / 1e9))
                .collect(),
            goodput_ratio: usual_s
                .filter(|_| settled > 0.0)
                .map(|_| round((1.0 - lost / settled).max(0.0))),
            step_s: usual_s.map(round),
            what_if_step_s: self.job_rules.what_if_s(&self.straggler).map(round),
            gpu_hour_price: price.map(round),
            lost_cost: price.map(|price| round(price * lost)),
        }
    }

    /// Returns [`Detector::gpu_hour_price`]. It is recomputed only if ranks, GPUs or prices have changed.
    pub(super) fn known_price(&mut self) -> Option<f64> {
        let made_of = (self.roster.shape, self.causes.gpus_read());
        match self.price {
            Some((of, price)) if of == made_of => price,
            _ => {
                let price = self.gpu_hour_price();
                self.price = Some((made_of, price));
                price
            }
        }
    }

    /// Returns the price of a GPU-hour, averaged over the job's ranks, or `None` if some rank has no price.
    pub(super) fn gpu_hour_price(&self) -> Option<f64> {
        let (mut sum, mut ranks) = (0.0, 0.0);
        for (_, member) in self.roster.members() {
            let model = member.gpu.as_ref().and_then(|gpu| self.causes.model(gpu));
            sum += self.policy.gpu_hour_price(model.as_deref())?;
            ranks += 1.0;
        }
        (ranks > 0.0).then(|| sum / ranks)
    }

    /// Adds the cost in money to a verdict.
    pub(super) fn priced(&self, mut verdict: Verdict, price: Option<f64>) -> Verdict {
        verdict.lost_cost = price.map(|price| round(price * verdict.lost_gpu_hours));
        verdict
    }
}

/// Returns the category of a loss.
fn name(verdict: &Verdict) -> &'static str {
    match verdict.cause {
        _ if matches!(verdict.finding, Finding::RankSilent | Finding::JobHang) => verdict.finding.name(),
        // If one rank delays its peers in a checkpoint, the loss is listed by its finding, because the write itself is
        // already booked as a checkpoint.
        Cause::Unknown | Cause::Checkpoint | Cause::Evaluation => verdict.finding.name(),
        cause => cause.name(),
    }
}
