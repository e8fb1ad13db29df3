//! Numbers and names as a person would say them: in the report, in top, in messages.

use crate::event::Signal;
use crate::report::Report;
use crate::verdict::{Cause, Severity, Subject, Verdict};

pub mod evidence;

/// A span of time: `850 us`, `44.1 ms`, `1.34 s`, `12.4 s`, `3 min 20 s`, `2 h 05 min`.
pub fn span(seconds: f64) -> String {
    let s = seconds.max(0.0);
    match s {
        _ if s == 0.0 => "0 s".to_owned(),
        _ if s < 1e-3 => format!("{:.0} us", s * 1e6),
        _ if s < 0.9995 => format!("{:.1} ms", s * 1e3),
        _ if s < 9.995 => format!("{s:.2} s"),
        _ if s < 60.0 => format!("{s:.1} s"),
        _ if s < 3600.0 => format!("{:.0} min {:02.0} s", (s / 60.0).floor(), (s % 60.0).floor()),
        _ => format!(
            "{:.0} h {:02.0} min",
            (s / 3600.0).floor(),
            (s % 3600.0 / 60.0).floor()
        ),
    }
}

/// A count with its noun: `1 rank`, `4 ranks`.
pub fn count(n: u64, noun: &str) -> String {
    if n == 1 {
        format!("1 {noun}")
    } else {
        format!("{n} {noun}s")
    }
}

/// A share: `0.4 %`, `12 %`.
pub fn percent(ratio: f64) -> String {
    let value = ratio * 100.0;
    if value != 0.0 && value.abs() < 9.95 {
        format!("{value:.1} %")
    } else {
        format!("{value:.0} %")
    }
}

/// Hours of a GPU's time (or of a rank's, where there is none): small numbers in seconds, or nobody could read them.
pub fn hours(hours: f64, whose: &str) -> String {
    if hours < 0.05 {
        format!("{:.1} {whose}-seconds", hours * 3600.0)
    } else {
        format!("{hours:.2} {whose}-hours")
    }
}

/// Whose hours a job's are: one of which no GPU was seen has none to count.
pub fn whose(report: &Report) -> &'static str {
    let mut subjects = report.verdicts.iter().map(|verdict| &verdict.subject);
    let has_gpu = |subject: &Subject| match subject {
        Subject::Rank { gpu_uuid, .. } => gpu_uuid.is_some(),
        subject => matches!(subject, Subject::Gpu { .. }),
    };
    if report.coverage.signals.contains(&Signal::S3) || subjects.any(has_gpu) {
        "GPU"
    } else {
        "rank"
    }
}

/// A severity as the first word of a finding.
pub fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Info => "INFO",
        Severity::Warning => "WARNING",
        Severity::Critical => "CRITICAL",
    }
}

/// An amount of money, in whatever currency the price was given.
pub fn money(amount: f64) -> String {
    if amount < 1000.0 {
        format!("{amount:.2}")
    } else {
        format!("{amount:.0}")
    }
}

/// When the trouble began and when the detector was sure.
pub fn since(verdict: &Verdict) -> String {
    let mut text = match verdict.since_step {
        Some(step) => format!("step {step} ({} after the start)", span(verdict.since_s)),
        None => format!("{} after the start", span(verdict.since_s)),
    };
    match (verdict.since_step, verdict.raised_step) {
        (Some(from), Some(sure)) if sure > from => {
            text += &format!(", sure {} later", count(sure - from, "step"));
        }
        _ if verdict.raised_s > verdict.since_s => {
            text += &format!(", sure {} later", span(verdict.raised_s - verdict.since_s));
        }
        _ => {}
    }
    if let Some(end) = verdict.cleared_s {
        text += &format!(", over after {}", span(end - verdict.since_s));
    }
    text
}

/// A cause in a few words.
pub fn cause(cause: Cause) -> &'static str {
    match cause {
        Cause::Unknown => "cause not seen",
        Cause::Thermal => "heat: the GPU protects itself",
        Cause::Power => "power: the GPU is capped or braked, its peers are not",
        Cause::ClockStuck => "clock: low without a reason on a cool GPU",
        Cause::Ecc => "memory errors on the GPU",
        Cause::Pcie => "PCIe: the link runs under its width or generation, or repeats itself",
        Cause::Nvlink => "NVLink errors",
        Cause::Network => "network: its ports count errors",
        Cause::DataLoading => "data loading",
        Cause::CpuContention => "CPU: the process waits for a core",
        Cause::GcPause => "garbage collection",
        Cause::Imbalance => "the work itself differs between ranks",
        Cause::Checkpoint => "it writes a checkpoint meanwhile",
        Cause::Evaluation => "it evaluates meanwhile",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_well_at_every_size() {
        for (seconds, text) in [
            (0.0, "0 s"),
            (0.00085, "850 us"),
            (0.0441, "44.1 ms"),
            (0.9999, "1.00 s"),
            (1.337, "1.34 s"),
            (12.44, "12.4 s"),
            (200.0, "3 min 20 s"),
            (7530.0, "2 h 05 min"),
        ] {
            assert_eq!(span(seconds), text);
        }
    }
}
