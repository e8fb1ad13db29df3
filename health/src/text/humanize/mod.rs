//! Formats numbers and names for the report, top and messages.

use crate::event::Signal;
use crate::id::Rank;
use crate::report::Report;
use crate::verdict::{Cause, Finding, Severity, Subject, Verdict};

pub mod evidence;

/// Maximum number of ranges of ranks that are listed.
const MAX_RANGES: usize = 6;

/// Formats a duration: `850 us`, `44.1 ms`, `1.34 s`, `12.4 s`, `3 min 20 s`, `2 h 05 min`.
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

/// Formats a count with its noun: `1 rank`, `4 ranks`.
pub fn count(n: u64, noun: &str) -> String {
    if n == 1 {
        format!("1 {noun}")
    } else {
        format!("{n} {noun}s")
    }
}

/// Formats ranks, for example as `rank 2` or `ranks 0-1, 3`. If there are too many ranges, it formats the number of
/// ranks.
pub fn ranks(ranks: &[Rank]) -> String {
    if let [rank] = ranks {
        return format!("rank {rank}");
    }
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for Rank(rank) in ranks {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *rank => *last = *rank,
            _ => ranges.push((*rank, *rank)),
        }
    }
    if ranges.len() > MAX_RANGES {
        return format!("{} ranks", ranks.len());
    }
    let range = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let ranges: Vec<String> = ranges.iter().map(range).collect();
    format!("ranks {}", ranges.join(", "))
}

/// Formats, for example, `3 other ranks have`.
pub fn other_ranks_have(ranks: usize) -> String {
    format!("{} {}", count(ranks as u64, "other rank"), has(ranks))
}

/// Returns the verb for this number of ranks.
pub fn has(ranks: usize) -> &'static str {
    if ranks == 1 { "has" } else { "have" }
}

/// Formats a share: `0.4 %`, `12 %`.
pub fn percent(ratio: f64) -> String {
    let value = ratio * 100.0;
    if value != 0.0 && value.abs() < 9.95 {
        format!("{value:.1} %")
    } else {
        format!("{value:.0} %")
    }
}

/// Formats the impact of a finding. It is a share of every step, or of the job's time if the finding occurs rarely.
pub fn impact(finding: &str, ratio: f64) -> String {
    let of = match finding {
        "single-rank-pause" | "slow-checkpoint" | "slow-warm-up" => "the job's time",
        _ => "every step",
    };
    format!("{} of {of}", percent(ratio))
}

/// Formats GPU-hours (or rank-hours without GPUs). Small amounts are in seconds, for readability.
pub fn hours(hours: f64, whose: &str) -> String {
    if hours < 0.05 {
        format!("{:.1} {whose}-seconds", hours * 3600.0)
    } else {
        format!("{hours:.2} {whose}-hours")
    }
}

/// Formats related amounts of GPU time in one unit, determined by the largest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuTime {
    whose: &'static str,
    in_seconds: bool,
}

impl GpuTime {
    /// Creates the format for amounts up to this many hours.
    pub fn of(largest_hours: f64, whose: &'static str) -> GpuTime {
        GpuTime {
            whose,
            in_seconds: largest_hours < 0.05,
        }
    }

    /// Creates the format for a part and its whole, given in hours. Seconds are used if the part would be unreadable in
    /// hours and the whole is readable in seconds.
    pub fn of_part(part_hours: f64, whole_hours: f64, whose: &'static str) -> GpuTime {
        GpuTime {
            whose,
            in_seconds: part_hours < 0.05 && whole_hours < 1.0,
        }
    }

    /// Formats an amount with its unit.
    pub fn text(self, hours: f64) -> String {
        let unit = if self.in_seconds { "seconds" } else { "hours" };
        format!("{} {}-{unit}", self.number(hours), self.whose)
    }

    /// Formats an amount without its unit, for use next to another one that has the unit.
    pub fn number(self, hours: f64) -> String {
        if self.in_seconds {
            format!("{:.1}", hours * 3600.0)
        } else if hours > 0.0 && hours < 0.01 {
            // Use two significant digits.
            format!(
                "{:.*}",
                (1.0 - hours.log10().floor()).clamp(2.0, 8.0) as usize,
                hours
            )
        } else {
            format!("{hours:.2}")
        }
    }
}

/// Formats a duration next to another one. Both use the unit of the longer one, for easy comparison.
pub fn span_beside(seconds: f64, other: f64) -> String {
    let longest = seconds.max(other);
    let (value, unit) = match longest {
        _ if longest <= 0.0 || longest >= 60.0 => return span(seconds),
        _ if longest < 1e-3 => (seconds.max(0.0) * 1e6, "us"),
        _ if longest < 0.9995 => (seconds.max(0.0) * 1e3, "ms"),
        _ => (seconds.max(0.0), "s"),
    };
    // The longer duration has the same format as in `span`. The shorter one has significant digits only.
    let digits = match value {
        _ if value == 0.0 => 0,
        _ if value < 0.1 => (1.0 - value.log10().floor()).clamp(2.0, 6.0) as usize,
        _ if unit == "s" && longest < 9.995 => 2,
        _ if unit == "us" => 0,
        _ => 1,
    };
    format!("{value:.digits$} {unit}")
}

/// Returns why the heat map of ranks and steps does not show a finding, if it does not. The reason is that it compares
/// ranks with each other.
pub fn calm_picture(finding: Finding) -> Option<&'static str> {
    match finding {
        Finding::ExpertImbalance | Finding::SequenceImbalance => Some(
            "the heat map shows no difference: it shows self-time without the effect of declared work (tokens, \
             expert tokens), and here the work itself differs",
        ),
        Finding::StageImbalance => Some(
            "the heat map shows no difference: it compares each rank with ranks of its own stage, and here whole \
             stages differ",
        ),
        Finding::AllRanksSlow
        | Finding::StepRegression
        | Finding::SlowFromBirth
        | Finding::CommunicationBound => Some(
            "the heat map shows no difference: it compares ranks with each other, and here all of them are slow",
        ),
        _ => None,
    }
}

/// Returns the unit of a job's hours, which is rank-hours if no GPU was seen.
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

/// Returns a severity as the first word of a finding.
pub fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Info => "INFO",
        Severity::Warning => "WARNING",
        Severity::Critical => "CRITICAL",
    }
}

/// Formats an amount of money, in the currency of the price.
pub fn money(amount: f64) -> String {
    if amount < 1000.0 {
        format!("{amount:.2}")
    } else {
        format!("{amount:.0}")
    }
}

/// Describes when the problem began and when the verdict was raised.
pub fn since(verdict: &Verdict) -> String {
    let mut text = match verdict.since_step {
        Some(step) => format!("step {step} ({} after the start)", span(verdict.since_s)),
        None => format!("{} after the start", span(verdict.since_s)),
    };
    match (verdict.since_step, verdict.raised_step) {
        (Some(from), Some(sure)) if sure > from => {
            text += &format!(", confirmed {} later", count(sure - from, "step"));
        }
        _ if verdict.raised_s > verdict.since_s => {
            text += &format!(", confirmed {} later", span(verdict.raised_s - verdict.since_s));
        }
        _ => {}
    }
    if let Some(end) = verdict.cleared_s {
        text += &format!(", over after {}", span(end - verdict.since_s));
    }
    text
}

/// Returns a cause in a few words.
pub fn cause(cause: Cause) -> &'static str {
    match cause {
        Cause::Unknown => "no cause found",
        Cause::Thermal => "heat: the GPU protects itself",
        Cause::Power => "power: the GPU is capped or braked",
        Cause::ClockStuck => "clock: low without a reason on a cool GPU",
        Cause::Ecc => "memory errors on the GPU",
        Cause::Pcie => "PCIe: the link runs below its width or generation, or retransmits",
        Cause::Nvlink => "NVLink errors",
        Cause::Network => "network: its ports count errors",
        Cause::DataLoading => "data loading",
        Cause::CpuContention => "CPU: the process waits for a core",
        Cause::GcPause => "garbage collection",
        Cause::Imbalance => "the work itself differs between ranks",
        Cause::Checkpoint => "it writes a checkpoint during the pause",
        Cause::Evaluation => "it evaluates during the pause",
        Cause::Storage => "storage: it waits for a file system",
        Cause::LockWait => "it waits for another thread of its process",
        Cause::RemoteService => "it waits for a service over the network",
        Cause::OtherProcess => "it waits for another process",
        Cause::Stopped => "a signal stopped the process",
        Cause::OwnCode => "it runs its own code while the other ranks wait",
        Cause::CollectiveMismatch => "the collectives of the ranks differ",
        Cause::GpuFault => "a fault of its GPU or of the GPU driver",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_that_stand_together_have_one_unit() {
        let large = GpuTime::of(2.5, "GPU");
        assert_eq!(large.text(2.5), "2.50 GPU-hours");
        assert_eq!(
            (large.text(0.0026), large.number(412.3)),
            ("0.0026 GPU-hours".into(), "412.30".into())
        );
        assert_eq!(GpuTime::of(0.01, "rank").text(0.01), "36.0 rank-seconds");
        for (part, whole, text) in [
            (0.0026, 0.13, "9.4 GPU-seconds"),
            (0.0026, 310.0, "0.0026 GPU-hours"),
            (0.06, 0.13, "0.06 GPU-hours"),
        ] {
            assert_eq!(GpuTime::of_part(part, whole, "GPU").text(part), text);
        }
        for (seconds, other, text) in [
            (45e-6, 3.2e-3, "0.045 ms"),
            (3.2e-3, 45e-6, "3.2 ms"),
            (0.0, 0.025, "0 ms"),
            (0.0526, 1.02, "0.053 s"),
            (1.02, 0.0526, "1.02 s"),
            (4e-6, 850e-6, "4 us"),
            (0.0, 0.0, "0 s"),
            (12.0, 200.0, "12.0 s"),
        ] {
            assert_eq!(span_beside(seconds, other), text, "{seconds} {other}");
        }
    }

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
