//! Numbers and evidence as a person would say them.

use paceline_health::verdict::{Cause, Evidence, Severity, Verdict};

/// A span of time: `850 us`, `44.1 ms`, `12.4 s`, `3 min 20 s`, `2 h 05 min`.
pub(crate) fn span(seconds: f64) -> String {
    let s = seconds.max(0.0);
    match s {
        _ if s == 0.0 => "0 s".to_owned(),
        _ if s < 1e-3 => format!("{:.0} us", s * 1e6),
        _ if s < 0.9995 => format!("{:.1} ms", s * 1e3),
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
pub(crate) fn count(n: u64, noun: &str) -> String {
    if n == 1 {
        format!("1 {noun}")
    } else {
        format!("{n} {noun}s")
    }
}

/// A share: `0.4 %`, `12 %`.
pub(crate) fn percent(ratio: f64) -> String {
    let value = ratio * 100.0;
    if value != 0.0 && value.abs() < 9.95 {
        format!("{value:.1} %")
    } else {
        format!("{value:.0} %")
    }
}

/// Hours of a GPU's time (or of a rank's, where there is none): small numbers in seconds, or nobody could read them.
pub(crate) fn hours(hours: f64, whose: &str) -> String {
    if hours < 0.05 {
        format!("{:.1} {whose}-seconds", hours * 3600.0)
    } else {
        format!("{hours:.2} {whose}-hours")
    }
}

/// A severity as the first word of a finding.
pub(crate) fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Info => "INFO",
        Severity::Warning => "WARNING",
        Severity::Critical => "CRITICAL",
    }
}

/// How one kind of evidence reads.
enum Reading {
    /// A label and a value, the same of the peers after it.
    Measure(&'static str, fn(f64) -> String),
    /// The value in front of these words.
    Counted(&'static str, &'static str),
    /// The words alone.
    Fact(&'static str),
}

const READINGS: [(&str, Reading); 9] = [
    ("self_time_s", Reading::Measure("self-time", span)),
    ("unexplained_wait_s", Reading::Measure("waits for others", span)),
    ("sm_clock_mhz", Reading::Measure("SM clock", mhz)),
    (
        "thermal_throttled_ratio",
        Reading::Measure("time slowed by heat", percent),
    ),
    ("temperature_c", Reading::Measure("temperature", celsius)),
    ("margin_c", Reading::Measure("thermal margin", celsius)),
    ("silent_s", Reading::Measure("no move for", span)),
    (
        "ranks_waiting",
        Reading::Counted("rank waits for it", "ranks wait"),
    ),
    ("process_gone", Reading::Fact("its process is gone")),
];

fn mhz(value: f64) -> String {
    format!("{value:.0} MHz")
}

fn celsius(value: f64) -> String {
    format!("{value:.0} C")
}

/// One piece of evidence as a phrase.
pub(crate) fn evidence(evidence: &Evidence) -> String {
    let known = READINGS
        .iter()
        .find(|(what, _)| *what == &*evidence.what)
        .map(|(_, reading)| reading);
    match known {
        Some(Reading::Measure(label, unit)) => match evidence.peers {
            Some(peers) => format!("{label} {}, peers {}", unit(evidence.value), unit(peers)),
            None => format!("{label} {}", unit(evidence.value)),
        },
        Some(Reading::Counted(_, many)) if evidence.value != 1.0 => format!("{:.0} {many}", evidence.value),
        Some(Reading::Counted(one, _)) => format!("1 {one}"),
        Some(Reading::Fact(words)) => (*words).to_owned(),
        None if &*evidence.what == "low_coverage" => "fewer than 3 peers to compare with".to_owned(),
        None => {
            let peers = evidence
                .peers
                .map(|peers| format!(", peers {peers}"))
                .unwrap_or_default();
            format!("{} {}{peers}", evidence.what.replace('_', " "), evidence.value)
        }
    }
}

/// When the trouble began and when the detector was sure.
pub(crate) fn since(verdict: &Verdict) -> String {
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
        text += &format!(", until {}", span(end));
    }
    text
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
            (0.9999, "1.0 s"),
            (12.44, "12.4 s"),
            (200.0, "3 min 20 s"),
            (7530.0, "2 h 05 min"),
        ] {
            assert_eq!(span(seconds), text);
        }
    }

    #[test]
    fn evidence_names_its_unit_and_its_peers() {
        let say = |what: &str, value, peers| {
            evidence(&Evidence {
                what: what.into(),
                value,
                peers,
                entries: None,
            })
        };
        assert_eq!(
            say("sm_clock_mhz", 1485.2, Some(1980.0)),
            "SM clock 1485 MHz, peers 1980 MHz"
        );
        assert_eq!(say("ranks_waiting", 1.0, None), "1 rank waits for it");
        assert_eq!(say("ranks_waiting", 7.0, None), "7 ranks wait");
        assert_eq!(say("new_counter", 2.5, Some(1.0)), "new counter 2.5, peers 1");
    }
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
    }
}
