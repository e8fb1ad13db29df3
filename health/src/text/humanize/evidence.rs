//! Formats evidence in words. Names of evidence include their units (`sm_clock_mhz`), so that even evidence unknown to
//! this version is readable.

use super::{percent, span, span_beside};
use crate::verdict::{Evidence, Finding, Subject, Verdict};

/// How one kind of evidence is displayed.
enum Reading {
    /// A label and a value, followed by the peers' value.
    Measure(&'static str, fn(f64) -> String),
    /// Only words, without a value.
    Fact(&'static str),
}

/// Evidence whose label differs from its name.
const READINGS: [(&str, Reading); 21] = [
    ("self_time_s", Reading::Measure("self-time", span)),
    ("wait_s", Reading::Measure("waits for others", span)),
    ("unexplained_wait_s", Reading::Measure("waits for others", span)),
    (
        "thermal_throttled_ratio",
        Reading::Measure("time slowed by heat", percent),
    ),
    (
        "last_clean_checkpoint_step",
        Reading::Measure("last clean checkpoint: step", plain),
    ),
    (
        "no_clean_checkpoint",
        Reading::Fact("no checkpoint is older than the error"),
    ),
    ("warm_up_s", Reading::Measure("warm-up takes", span)),
    ("warm_up_steps", Reading::Measure("warm-up lasts", steps)),
    ("pause_s", Reading::Measure("each pause takes", span)),
    ("pause_every_steps", Reading::Measure("comes every", steps)),
    (
        "undeclared_pause",
        Reading::Fact("the activity during the pause is not declared"),
    ),
    ("margin_c", Reading::Measure("thermal margin", celsius)),
    ("silent_s", Reading::Measure("no progress for", span)),
    ("alike_gpus", Reading::Measure("GPUs alike", plain)),
    ("ranks_waiting", Reading::Measure("ranks waiting", plain)),
    ("peers_alive", Reading::Measure("peers still running", plain)),
    ("signal", Reading::Measure("ended by signal", plain)),
    ("exit_code", Reading::Measure("exit code", plain)),
    ("process_gone", Reading::Fact("its process is gone")),
    ("observe_only", Reading::Fact("only observed")),
    (
        "low_coverage",
        Reading::Fact("fewer than 3 peers to compare with"),
    ),
];

/// A name suffix, and the format of its values.
type Unit = (&'static str, fn(f64) -> String);

/// Unit suffixes of names; longer ones come before their own suffixes.
const UNITS: [Unit; 15] = [
    ("_flop_per_s", flop_per_second),
    ("_bytes_per_s", bytes_per_second),
    ("_per_s", per_second),
    ("_ratio", percent),
    ("_bytes", bytes),
    ("_mhz", mhz),
    ("_bps", bits_per_second),
    ("_steps", plain),
    ("_ns", |value| span(value / 1e9)),
    ("_ms", |value| span(value / 1e3)),
    ("_hours", |value| span(value * 3600.0)),
    ("_s", span),
    ("_c", celsius),
    ("_w", watts),
    ("_x", |value| format!("{value:.2}x")),
];

/// Words of names that are spelled differently in text.
const SPELLED: [(&str, &str); 13] = [
    ("gemm", "GEMM"),
    ("sm", "SM"),
    ("gpu", "GPU"),
    ("cpu", "CPU"),
    ("pcie", "PCIe"),
    ("nvlink", "NVLink"),
    ("ecc", "ECC"),
    ("crc", "CRC"),
    ("xid", "XID"),
    ("sxid", "SXid"),
    ("nic", "NIC"),
    ("gc", "garbage collection"),
    ("p99", "p99"),
];

/// Names of causes for shares of the excess that they explain.
const EXPLAINS: [(&str, &str); 6] = [
    ("explained_by_thermal_ratio", "heat"),
    ("explained_by_power_ratio", "the power limit"),
    ("explained_by_clock_stuck_ratio", "the low clock"),
    ("explained_by_data_loading_ratio", "data loading"),
    ("explained_by_cpu_contention_ratio", "waiting for a CPU"),
    ("explained_by_gc_pause_ratio", "garbage collection"),
];

/// Formats one piece of evidence in words: a label, the subject's value, and the peers' value. A missing value is
/// empty. In evidence on several GPUs, the name begins with that of one GPU, as in `GPU-25bf1e78:
/// thermal_throttled_ratio`.
pub fn parts(evidence: &Evidence) -> [String; 3] {
    let Some((gpu, what)) = evidence.what.split_once(": ") else {
        return measured(evidence, &evidence.what);
    };
    let [label, value, peers] = measured(evidence, what);
    [format!("{gpu} {label}"), value, peers]
}

fn measured(evidence: &Evidence, what: &str) -> [String; 3] {
    if let Some((_, cause)) = EXPLAINS.iter().find(|(known, _)| *known == what) {
        let label = format!("{cause} explains");
        return [
            label,
            format!("{} of the excess", percent(evidence.value)),
            String::new(),
        ];
    }
    let known = READINGS.iter().find(|(known, _)| *known == what);
    let (label, unit) = match known.map(|(_, reading)| reading) {
        Some(Reading::Fact(words)) => return [(*words).to_owned(), String::new(), String::new()],
        Some(Reading::Measure(label, unit)) => ((*label).to_owned(), *unit),
        None => {
            let unit = UNITS
                .iter()
                .find_map(|(end, unit)| Some((what.strip_suffix(end)?, *unit)));
            let other: fn(f64) -> String = if what.contains("xid_") { times } else { plain };
            let (name, unit) = unit.unwrap_or((what, other));
            (spelled(name), unit)
        }
    };
    let (value, peers) = (evidence.value, evidence.peers);
    match peers {
        // Use the same unit for both times, to avoid 45 us next to 3.2 ms. The unit is a time if it formats like one.
        Some(peers) if unit(1.0) == span(1.0) => {
            [label, span_beside(value, peers), span_beside(peers, value)]
        }
        peers => [label, unit(value), peers.map(unit).unwrap_or_default()],
    }
}

/// Returns all evidence of a verdict in the form of [`parts`]. Text comes first.
pub fn all(verdict: &Verdict) -> Vec<[String; 3]> {
    let label = match verdict.finding {
        Finding::RankSilent | Finding::JobHang => "stacks",
        _ => "it said",
    };
    let says = verdict.says.iter();
    let says = says.map(|says| [label.to_owned(), says.to_string(), String::new()]);
    says.chain(verdict.evidence.iter().map(parts)).collect()
}

/// Formats the evidence as a phrase, for a subject that has peers.
pub fn phrase(evidence: &Evidence) -> String {
    join_with(&parts(evidence), "peers")
}

/// Formats a verdict's evidence as a phrase. The verdict is needed because a whole job has no peers and is compared
/// with its past.
pub fn phrase_of(verdict: &Verdict, evidence: &Evidence) -> String {
    join_with(&parts(evidence), reference(verdict))
}

/// Returns all evidence of a verdict in the form of [`phrase_of`].
pub fn phrases(verdict: &Verdict) -> Vec<String> {
    let reference = reference(verdict);
    let pieces = all(verdict);
    pieces.iter().map(|piece| join_with(piece, reference)).collect()
}

/// Returns what a verdict's slowdown is compared with. It completes the phrase `1.3x as long as`.
pub fn beside(verdict: &Verdict) -> &'static str {
    match reference(verdict) {
        "peers" => "its peers",
        "mean" => "the mean",
        other => other,
    }
}

/// Returns what the second value in a verdict's evidence is.
pub fn reference(verdict: &Verdict) -> &'static str {
    use Finding as F;
    match (verdict.finding, &verdict.subject) {
        (F::AllRanksSlow | F::StepRegression | F::SlowFromBirth | F::SlowCheckpoint, Subject::Job { .. }) => {
            "before"
        }
        (F::ExpertImbalance | F::StageImbalance, _) => "mean",
        (F::SlowWarmUp, Subject::Job { .. }) => "ordinary steps",
        _ => "peers",
    }
}

/// Joins the parts from [`parts`] into a phrase. `reference` says what the second value is.
pub fn join_with([label, value, other]: &[impl AsRef<str>; 3], reference: &str) -> String {
    let mut phrase = label.as_ref().to_owned();
    let other_head = format!(", {reference} ");
    for (before, text) in [(" ", value.as_ref()), (&other_head, other.as_ref())] {
        if !text.is_empty() {
            phrase += before;
            phrase += text;
        }
    }
    phrase
}

fn spelled(name: &str) -> String {
    let words = name.split('_').map(|word| {
        let other = SPELLED.iter().find(|(plain, _)| *plain == word);
        other.map_or(word, |(_, other)| other)
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Formats a number without a unit, with significant digits only.
fn plain(value: f64) -> String {
    let digits = match value.abs() {
        large if large >= 100.0 => 0,
        some if some >= 1.0 => 2,
        _ => 4,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

fn steps(value: f64) -> String {
    super::count(value as u64, "step")
}

/// Formats how often the driver reported something.
fn times(value: f64) -> String {
    if value == 1.0 {
        "once".to_owned()
    } else {
        format!("{value} times")
    }
}

fn mhz(value: f64) -> String {
    format!("{value:.0} MHz")
}

fn celsius(value: f64) -> String {
    format!("{value:.0} C")
}

fn watts(value: f64) -> String {
    format!("{value:.0} W")
}

fn per_second(value: f64) -> String {
    if value < 10.0 {
        format!("{value:.2}/s")
    } else {
        format!("{value:.0}/s")
    }
}

pub(crate) fn bytes(value: f64) -> String {
    scaled(value, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"])
}

fn bits_per_second(value: f64) -> String {
    scaled(value, 1000.0, &["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"])
}

fn bytes_per_second(value: f64) -> String {
    scaled(value, 1000.0, &["B/s", "kB/s", "MB/s", "GB/s", "TB/s"])
}

fn flop_per_second(value: f64) -> String {
    scaled(
        value,
        1000.0,
        &["FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s"],
    )
}

fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let (mut value, mut unit) = (value, 0);
    while value >= step && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && value < 100.0);
    format!("{value:.digits$} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_names_its_unit_and_its_peers() {
        for (what, value, peers, expected) in [
            (
                "sm_clock_mhz",
                1485.2,
                Some(1980.0),
                "SM clock 1485 MHz, peers 1980 MHz",
            ),
            ("ranks_waiting", 1.0, None, "ranks waiting 1"),
            ("ranks_waiting", 7.0, None, "ranks waiting 7"),
            ("process_gone", 1.0, None, "its process is gone"),
            (
                "explained_by_cpu_contention_ratio",
                0.85,
                None,
                "waiting for a CPU explains 85 % of the excess",
            ),
            (
                "self_time_s",
                0.125,
                Some(0.1),
                "self-time 125.0 ms, peers 100.0 ms",
            ),
            ("wait_s", 0.0, Some(0.025), "waits for others 0 ms, peers 25.0 ms"),
            (
                "preflight_gemm_flop_per_s",
                5.8e14,
                Some(7e14),
                "preflight GEMM 580 TFLOP/s, peers 700 TFLOP/s",
            ),
            (
                "preflight_pair_busbw_bytes_per_s",
                1.15e10,
                None,
                "preflight pair busbw 11.5 GB/s",
            ),
            ("xid_79", 1.0, None, "XID 79 once"),
            ("sxid_12028", 2.0, None, "SXid 12028 2 times"),
            ("new_counter", 2.5, Some(1.0), "new counter 2.5, peers 1"),
            ("tokens", 32767.9375, Some(16384.0), "tokens 32768, peers 16384"),
            (
                "wait_s",
                45e-6,
                Some(3.2e-3),
                "waits for others 0.045 ms, peers 3.2 ms",
            ),
            (
                "ecc_corrected_per_s",
                17700.0,
                Some(0.25),
                "ECC corrected 17700/s, peers 0.25/s",
            ),
            ("run_queue_ratio", 0.4, Some(0.01), "run queue 40 %, peers 1.0 %"),
            (
                "nic_rate_bps",
                1e11,
                Some(4e11),
                "NIC rate 100 Gbit/s, peers 400 Gbit/s",
            ),
            ("memory_used_bytes", 8.5e10, None, "memory used 79.2 GiB"),
            (
                "power_limit_w",
                450.0,
                Some(700.0),
                "power limit 450 W, peers 700 W",
            ),
        ] {
            let evidence = Evidence {
                what: what.into(),
                value,
                peers,
                entries: None,
            };
            assert_eq!(phrase(&evidence), expected);
        }
    }
}
