//! Formats the costs of the job so far, by cause of the loss, and of each finding.

use paceline_health::report::{Cost, Report};
use paceline_health::text::humanize::{self, GpuTime, money, percent, span_beside, whose};
use paceline_health::verdict::{State, Verdict};

use super::block::Block;

/// Maximum number of causes that are named.
const NAMED: usize = 5;
/// Losses below this number of hours have no daily rate, because it would need another unit and is based on too little
/// data.
const DAILY_FROM_HOURS: f64 = 0.1;

/// The names of the evidence in findings after which steps must be trained again.
const RETRAINED: [&str; 2] = ["last_clean_checkpoint_step", "no_clean_checkpoint"];

impl Block {
    /// Prints the cost of the job so far, or nothing if no time was spent.
    pub(super) fn job_cost(&mut self, report: &Report) {
        let cost = &report.cost;
        let whose = whose(report);
        if cost.lost_gpu_hours > 0.0 {
            let unit = GpuTime::of_part(cost.lost_gpu_hours, cost.gpu_hours, whose);
            self.labelled("lost", &lost(cost, unit));
            self.labelled("", &by_cause(cost, unit));
        }
        let mut speed = Vec::new();
        if let Some(goodput) = cost.goodput_ratio {
            speed.push(format!(
                "{} of the time was progress at full speed",
                percent(goodput)
            ));
        }
        if let (Some(what_if), Some(now)) = (cost.what_if_step_s, cost.step_s)
            && what_if < now * 0.995
        {
            speed.push(format!(
                "steps would take {} instead of {} without the current problems",
                span_beside(what_if, now),
                span_beside(now, what_if)
            ));
        }
        if !speed.is_empty() {
            self.labelled("goodput", &speed.join("; "));
        }
    }

    /// Prints what one finding costs.
    pub(super) fn finding_cost(&mut self, verdict: &Verdict, report: &Report) {
        let text = of_finding(verdict, report);
        if !text.is_empty() {
            self.labelled("cost", &text);
        }
    }
}

/// Formats the cost of one finding. Empty if none is known.
pub(super) fn of_finding(verdict: &Verdict, report: &Report) -> String {
    let mut parts = Vec::new();
    if verdict.lost_gpu_hours > 0.0 {
        let whose = whose(report);
        let span_s = verdict.cleared_s.unwrap_or(report.duration_s) - verdict.since_s;
        let unit = GpuTime::of(verdict.lost_gpu_hours, whose);
        let mut lost = format!("{} so far", unit.text(verdict.lost_gpu_hours));
        if let Some(price) = verdict.lost_cost {
            lost += &format!(", worth {}", money(price));
        }
        // Show no rate for steps to be trained again, because these are lost only once.
        let is_once = verdict
            .evidence
            .iter()
            .any(|piece| RETRAINED.contains(&&*piece.what));
        let is_steady = !is_once && span_s > 1.0 && verdict.lost_gpu_hours >= DAILY_FROM_HOURS;
        if verdict.state == State::Raised && is_steady {
            let a_day = 86_400.0 / span_s;
            let rate = verdict.lost_gpu_hours * a_day;
            // Show few digits, because the rate is an estimate.
            let rate = if rate >= 2.0 {
                format!("{rate:.0}")
            } else {
                unit.number(rate)
            };
            lost += &format!(" ({rate} a day");
            if let Some(price) = verdict.lost_cost {
                lost += &format!(", worth {}", money(price * a_day));
            }
            lost += ")";
        }
        parts.push(lost);
    }
    if let Some(impact) = verdict.impact_ratio {
        parts.push(humanize::impact(verdict.finding.name(), impact));
    }
    parts.join("; ")
}

fn lost(cost: &Cost, unit: GpuTime) -> String {
    let mut text = unit.text(cost.lost_gpu_hours);
    if cost.gpu_hours > 0.0 {
        let share = percent(cost.lost_gpu_hours / cost.gpu_hours);
        text += &format!(" of {} ({share})", unit.text(cost.gpu_hours));
    }
    match (cost.lost_cost, cost.gpu_hour_price) {
        (Some(price), Some(each)) => {
            text += &format!(", worth {} at {} an hour", money(price), money(each));
        }
        (Some(price), None) => text += &format!(", worth {}", money(price)),
        (None, _) => {}
    }
    text
}

/// Returns the GPU-hours by cause of the loss. The largest come first, and equal ones are sorted by name. Losses that
/// would print as zero are omitted.
pub(super) fn losses(cost: &Cost) -> Vec<(&str, f64)> {
    let all = cost.by_cause.iter().map(|(cause, lost)| (&**cause, *lost));
    let mut causes: Vec<_> = all.filter(|(_, lost)| lost * 3600.0 >= 0.05).collect();
    causes.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(b.0)));
    causes
}

fn by_cause(cost: &Cost, unit: GpuTime) -> String {
    let causes = losses(cost);
    let mut parts: Vec<String> = causes
        .iter()
        .take(NAMED)
        .map(|(cause, lost)| format!("{cause} {}", unit.text(*lost)))
        .collect();
    let rest: f64 = causes.iter().skip(NAMED).map(|(_, lost)| lost).sum();
    if rest > 0.0 {
        parts.push(format!("other {}", unit.text(rest)));
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use paceline_health::verdict::{Cause, Evidence, Finding};

    use super::*;
    use crate::report::samples;

    /// Steps to be trained again since a checkpoint are lost only once. A daily rate would exceed the hours of a day.
    #[test]
    fn what_is_trained_again_has_no_daily_amount() {
        let mut verdict = samples::verdict(1, Finding::Straggler, samples::rank(5), Cause::Ecc);
        verdict.lost_gpu_hours = 2.0;
        let report = samples::report(Vec::new());
        assert!(of_finding(&verdict, &report).contains(" a day"));
        verdict.evidence.push(Evidence {
            what: "no_clean_checkpoint".into(),
            value: 1.0,
            peers: None,
            entries: None,
        });
        assert!(!of_finding(&verdict, &report).contains(" a day"));
    }

    #[test]
    fn a_small_loss_is_readable_and_has_no_daily_amount() {
        let text = |lost_gpu_hours: f64| {
            let mut verdict = samples::verdict(1, Finding::Straggler, samples::rank(5), Cause::Thermal);
            (verdict.lost_gpu_hours, verdict.lost_cost) = (lost_gpu_hours, None);
            of_finding(&verdict, &samples::report(Vec::new()))
        };
        assert!(text(0.0026).starts_with("9.4 "), "{}", text(0.0026));
        assert!(text(0.0026).contains("-seconds so far; 8.0 % of every step"));
        assert!(text(0.07).contains("0.07 ") && !text(0.07).contains("a day"));
        assert!(text(0.1).contains("-hours so far (") && text(0.1).contains(" a day); "));
    }
}
