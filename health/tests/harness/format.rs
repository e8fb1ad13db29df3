//! Formats verdicts, truth and reports as lines for review.

use paceline_health::report::{Cost, Report};
use paceline_health::sim::Truth;
use paceline_health::verdict::{Cause, State, Subject, Verdict};

/// Formats one incident on one line, and its evidence on the next line.
pub fn verdict(verdict: &Verdict) -> String {
    let place = |seconds: f64, step: Option<u64>| match step {
        Some(step) => format!("{seconds:.1}s/step {step}"),
        None => format!("{seconds:.1}s"),
    };
    // Leave out UUIDs, because they are meaningless in a script.
    let subject = match &verdict.subject {
        Subject::Rank { rank, node, .. } => format!("rank {rank} on {node}"),
        other => other.to_string(),
    };
    let mut told = format!("#{} ", verdict.id);
    match verdict.state {
        State::Raised => {
            told += &format!("RAISED at {}", place(verdict.raised_s, verdict.raised_step));
        }
        State::Cleared => told += &format!("CLEARED at {:.1}s", verdict.cleared_s.unwrap_or(f64::NAN)),
    }
    told += &format!(": {} {subject}, {}", verdict.finding, verdict.severity.name());
    if verdict.observe_only {
        told += " (observe only)";
    }
    told += &format!(", since {}", place(verdict.since_s, verdict.since_step));
    if verdict.cause != Cause::Unknown {
        told += &format!(", cause {}", verdict.cause.name());
    }
    if let Some(ratio) = verdict.slowdown_ratio {
        told += &format!(", x{ratio:.3}");
    }
    if let Some(ratio) = verdict.impact_ratio {
        told += &format!(", impact {:.1} %", 100.0 * ratio);
    }
    if verdict.lost_gpu_hours > 0.0 {
        told += &format!(", lost {:.1} GPU-s", 3600.0 * verdict.lost_gpu_hours);
    }
    told += &format!(", {:?}, {:?}\n", verdict.signals, verdict.provenance);
    let evidence = verdict.evidence.iter().map(|piece| match piece.peers {
        Some(peers) => format!("{} {:.3} (peers {peers:.3})", piece.what, piece.value),
        None => format!("{} {:.3}", piece.what, piece.value),
    });
    let evidence: Vec<String> = evidence.collect();
    if !evidence.is_empty() {
        told += &format!("    {}\n", evidence.join(", "));
    }
    if let Some(says) = verdict.says.as_ref().filter(|_| verdict.state == State::Raised) {
        told += &format!("    says: {says}\n");
    }
    if verdict.unresolved_at_exit {
        told += "    unresolved at exit\n";
    }
    if let Some(order) = verdict.order.filter(|_| verdict.state == State::Raised) {
        told += &format!(
            "    {} {}: {}\n",
            order.remedy.name(),
            order.when.words(),
            verdict.action
        );
    }
    told
}

/// Formats the actual fault next to the detector's verdicts on the same rank.
pub fn truth(truth: &Truth, verdicts: &[Verdict]) -> String {
    let mut told = format!("{}: ", truth.fault);
    match (truth.since_step, truth.last_step) {
        (Some(since), Some(last)) => told += &format!("felt from step {since} to {last}"),
        _ => told += "not felt",
    }
    told += &format!(", lost {:.1} GPU-s", truth.lost_gpu_s);
    // A rank may be slow more than once, so only incidents that began during this fault are used.
    let span = truth.since_step.unwrap_or(0).saturating_sub(10)..=truth.last_step.unwrap_or(0);
    let same = |verdict: &&Verdict| {
        matches!(verdict.subject, Subject::Rank { rank, .. } if Some(rank) == truth.rank)
            && verdict.since_step.is_some_and(|step| span.contains(&step))
    };
    let said: f64 = verdicts
        .iter()
        .filter(same)
        .map(|verdict| 3600.0 * verdict.lost_gpu_hours)
        .sum();
    if truth.lost_gpu_s > 0.0 && said > 0.0 {
        told += &format!(
            ", told {said:.1} ({:+.1} %)",
            100.0 * (said / truth.lost_gpu_s - 1.0)
        );
    }
    told + "\n"
}

/// Formats the coverage, without the verdicts.
pub fn report(report: &Report) -> String {
    let coverage = &report.coverage;
    let mut told = format!("{} steps of {} ranks", report.steps, report.world_size);
    if let Some(median) = report.median_step_s {
        told += &format!(", median {median:.3} s");
    }
    told += &format!(", {:.1} s\n", report.duration_s);
    told += &format!("ranks {} of {}, ", coverage.ranks_seen, coverage.ranks_expected);
    told += &match coverage.steps_ratio {
        Some(ratio) => format!("steps {:.1} %, ", 100.0 * ratio),
        None => "no steps, ".to_owned(),
    };
    told += &format!(
        "signals {:?}, frames lost {}\n",
        coverage.signals, coverage.frames_lost
    );
    for gap in &coverage.gaps {
        let to = gap.to_s.map_or("now".to_owned(), |to| format!("{to:.1}s"));
        told += &format!("gap: {} from {:.1}s to {to}: {}\n", gap.node, gap.from_s, gap.why);
    }
    for note in &coverage.notes {
        told += &format!("note: {note}\n");
    }
    if let Some(end) = &report.end {
        let rank = end.rank.map_or(String::new(), |rank| format!(" rank {rank}"));
        let code = end.code.map_or(String::new(), |code| format!(" code {code}"));
        let says = paceline_health::report::headline(&end.says);
        let missing = end
            .missing
            .as_ref()
            .map_or(String::new(), |missing| format!(" waits for {missing}"));
        let says = if says.is_empty() {
            String::new()
        } else {
            format!(": {says}")
        };
        told += &format!("end: {}{rank}{code}{missing}{says}\n", end.reason.name());
    }
    for exit in &report.exits {
        told += &format!("exit: {} {}\n", exit.node, exit.code);
    }
    told
}

/// Formats the job's cost and losses.
pub fn cost(cost: &Cost) -> String {
    let seconds = |hours: f64| format!("{:.1} GPU-s", 3600.0 * hours);
    let mut told = format!(
        "{}, lost {}",
        seconds(cost.gpu_hours),
        seconds(cost.lost_gpu_hours)
    );
    if let Some(goodput) = cost.goodput_ratio {
        told += &format!(", goodput {:.1} %", 100.0 * goodput);
    }
    if let Some(step) = cost.what_if_step_s {
        told += &format!(", step could be {step:.3} s");
    }
    if let (Some(price), Some(lost)) = (cost.gpu_hour_price, cost.lost_cost) {
        told += &format!(", {lost:.4} at {price:.2} an hour");
    }
    told += "\n";
    for (cause, hours) in &cost.by_cause {
        told += &format!("    {cause}: {}\n", seconds(*hours));
    }
    told
}
