//! What it costs: the job so far, by what it was lost to, and each finding by itself.

use paceline_health::report::{Cost, Report};
use paceline_health::verdict::{State, Verdict};
use paceline_health::words::{hours, money, percent, span, whose};

use super::block::Block;

/// Causes that are told by name.
const NAMED: usize = 5;

impl Block {
    /// The job so far. Nothing is said before anything was spent.
    pub(super) fn job_cost(&mut self, report: &Report) {
        let cost = &report.cost;
        let whose = whose(report);
        if cost.lost_gpu_hours > 0.0 {
            self.labelled("lost", &lost(cost, whose));
            self.labelled("", &by_cause(cost, whose));
        }
        let mut speed = Vec::new();
        if let Some(goodput) = cost.goodput_ratio {
            speed.push(format!(
                "{} of the time made progress at full speed",
                percent(goodput)
            ));
        }
        if let (Some(what_if), Some(now)) = (cost.what_if_step_s, cost.step_s)
            && what_if < now * 0.995
        {
            speed.push(format!(
                "steps would take {} instead of {} without what is wrong now",
                span(what_if),
                span(now)
            ));
        }
        if !speed.is_empty() {
            self.labelled("goodput", &speed.join("; "));
        }
    }

    /// What one finding costs.
    pub(super) fn finding_cost(&mut self, verdict: &Verdict, report: &Report) {
        let text = of_finding(verdict, report);
        if !text.is_empty() {
            self.labelled("cost", &text);
        }
    }
}

/// What one finding costs, in words; empty: nothing, as far as is known.
pub(super) fn of_finding(verdict: &Verdict, report: &Report) -> String {
    let mut parts = Vec::new();
    if verdict.lost_gpu_hours > 0.0 {
        let whose = whose(report);
        let mut lost = format!("{} so far", hours(verdict.lost_gpu_hours, whose));
        if let Some(price) = verdict.lost_cost {
            lost += &format!(", worth {}", money(price));
        }
        let span_s = verdict.cleared_s.unwrap_or(report.duration_s) - verdict.since_s;
        if verdict.state == State::Raised && span_s > 1.0 {
            let a_day = 86_400.0 / span_s;
            lost += &format!(" ({:.0} {whose}-hours a day", verdict.lost_gpu_hours * a_day);
            if let Some(price) = verdict.lost_cost {
                lost += &format!(", worth {}", money(price * a_day));
            }
            lost += ")";
        }
        parts.push(lost);
    }
    if let Some(impact) = verdict.impact_ratio {
        parts.push(format!("{} of every step", percent(impact)));
    }
    parts.join("; ")
}

fn lost(cost: &Cost, whose: &str) -> String {
    let mut text = hours(cost.lost_gpu_hours, whose);
    if cost.gpu_hours > 0.0 {
        let share = percent(cost.lost_gpu_hours / cost.gpu_hours);
        text += &format!(" of {} ({share})", hours(cost.gpu_hours, whose));
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

/// GPU-hours by what they were lost to: the largest first; equal ones by name. What would read as nothing is left out.
pub(super) fn losses(cost: &Cost) -> Vec<(&str, f64)> {
    let all = cost.by_cause.iter().map(|(cause, lost)| (&**cause, *lost));
    let mut causes: Vec<_> = all.filter(|(_, lost)| lost * 3600.0 >= 0.05).collect();
    causes.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(b.0)));
    causes
}

fn by_cause(cost: &Cost, whose: &str) -> String {
    let causes = losses(cost);
    let mut parts: Vec<String> = causes
        .iter()
        .take(NAMED)
        .map(|(cause, lost)| format!("{cause} {}", hours(*lost, whose)))
        .collect();
    let rest: f64 = causes.iter().skip(NAMED).map(|(_, lost)| lost).sum();
    if rest > 0.0 {
        parts.push(format!("other {}", hours(rest, whose)));
    }
    parts.join(", ")
}
