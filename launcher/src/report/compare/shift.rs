//! Determines if steps are longer in one run than in another, beyond their variation.
//!
//! Consecutive steps are correlated, so thousands of steps are not thousands of independent measurements. Therefore
//! each run is divided into up to sixteen batches, and their means count as the measurements ([batch
//! means](https://doi.org/10.1287/opre.30.3.556)). The natural difference between two runs of the same job on the same
//! machines cannot be determined from two runs, and is reported as unknown.

use paceline_health::report::Report;
use paceline_health::report::history::History;
use paceline_health::stats;
use paceline_health::text::humanize::{percent, span};
use serde::Serialize;

/// Number of batches of a run, and the minimum number to estimate the variance.
const STRETCHES: usize = 16;
const FEWEST: usize = 4;
/// Share of the run that is skipped at its start, because caches fill and kernels are compiled then.
const BEGINNING: f64 = 0.05;
/// Steps that take this many times longer than usual are stalls, provided that they are rare.
const STOOD: f64 = 4.0;
const FEW: f64 = 0.05;
/// A smaller shift is not worth acting on.
const NOTEWORTHY: f64 = 0.01;
/// Student's t at 97.5 %, by degrees of freedom from 1 on. The last value is used for all larger ones.
const T: [f64; 15] = [
    12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13,
];

/// The result of a comparison. It describes the second run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Told {
    /// The second run's steps are shorter, beyond the noise.
    Better,
    /// The second run's steps are longer, beyond the noise.
    Worse,
    /// The steps differ by less than one percent, or by less than the noise.
    Same,
    /// One of the runs has too few steps.
    Unknown,
}

/// The change of the mean duration of ordinary steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Shift {
    /// The means in both runs, in seconds. They are means of the ranks' medians.
    pub(super) mean_s: [f64; 2],
    /// The ratio of the second mean to the first, minus one.
    pub(super) ratio: f64,
    /// The 95 % interval of the ratio, from the variance within the runs. `null` if there are too few steps.
    pub(super) interval: Option<[f64; 2]>,
}

impl Told {
    pub(super) fn of(shift: Option<&Shift>) -> Told {
        let Some(Shift {
            ratio,
            interval: Some([low, high]),
            ..
        }) = shift
        else {
            return Told::Unknown;
        };
        if ratio.abs() < NOTEWORTHY || *low <= 0.0 && *high >= 0.0 {
            Told::Same
        } else if *ratio > 0.0 {
            Told::Worse
        } else {
            Told::Better
        }
    }
}

/// The mean, its variance, and the number of batches.
struct Scatter {
    mean_s: f64,
    variance: f64,
    stretches: usize,
}

pub(super) fn of(a: &Report, b: &Report) -> Option<Shift> {
    let (one, two) = (scatter(a.history.as_ref()?)?, scatter(b.history.as_ref()?)?);
    let ratio = two.mean_s / one.mean_s - 1.0;
    let fewest = one.stretches.min(two.stretches);
    let interval = (fewest >= FEWEST).then(|| {
        let t = T[(fewest - 2).min(T.len() - 1)];
        let half = t * (one.variance + two.variance).sqrt() / one.mean_s;
        [ratio - half, ratio + half]
    });
    Some(Shift {
        mean_s: [one.mean_s, two.mean_s],
        ratio,
        interval,
    })
}

fn scatter(history: &History) -> Option<Scatter> {
    let ordinary = history.columns.iter().filter_map(|column| {
        let weight = column.steps.saturating_sub(column.apart) as f64;
        column
            .p50_s
            .filter(|p50_s| weight > 0.0 && p50_s.is_finite())
            .map(|p50_s| (p50_s, weight))
    });
    let columns: Vec<(f64, f64)> = ordinary.collect();
    let columns = without_stalls(columns);
    let all: f64 = columns.iter().map(|(_, weight)| weight).sum();
    let mut before = 0.0;
    let steady: Vec<(f64, f64)> = columns
        .into_iter()
        .filter(|(_, weight)| {
            before += weight;
            before > all * BEGINNING
        })
        .collect();
    let each = steady.len().div_ceil(STRETCHES).max(1);
    let means: Vec<f64> = steady.chunks(each).map(mean).collect();
    let mean_s = mean(&steady);
    if means.is_empty() || mean_s <= 0.0 {
        return None;
    }
    let count = means.len() as f64;
    let middle = means.iter().sum::<f64>() / count;
    let squares: f64 = means.iter().map(|mean| (mean - middle).powi(2)).sum();
    Some(Scatter {
        mean_s,
        variance: squares / (count - 1.0).max(1.0) / count,
        stretches: means.len(),
    })
}

/// Removes the stalls, which are rare steps that took many times as long as the median. They count as lost time, not as
/// pace.
fn without_stalls(columns: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let mut sorted: Vec<f64> = columns.iter().map(|(p50_s, _)| *p50_s).collect();
    let Some(usual_s) = stats::median(&mut sorted) else {
        return columns;
    };
    let all: f64 = columns.iter().map(|(_, weight)| weight).sum();
    let (moved, stood): (Vec<_>, Vec<_>) = columns.iter().partition(|(p50_s, _)| *p50_s < STOOD * usual_s);
    let stood: f64 = stood.iter().map(|(_, weight)| weight).sum();
    if stood <= FEW * all { moved } else { columns }
}

fn mean(weighed: &[(f64, f64)]) -> f64 {
    let weights: f64 = weighed.iter().map(|(_, weight)| weight).sum();
    weighed.iter().map(|(value, weight)| value * weight).sum::<f64>() / weights
}

/// Formats the result in one or two sentences.
pub(super) fn says(told: Told, shift: Option<&Shift>, [a, b]: [&Report; 2]) -> String {
    let Some(Shift {
        mean_s,
        ratio,
        interval,
    }) = shift
    else {
        return "No comparison: at least one of the runs has no step history (reports of older versions lack it; \
            a replay of the journal creates it)."
            .to_owned();
    };
    let from_to = format!("{} to {} a steady step", span(mean_s[0]), span(mean_s[1]));
    let by = percent(ratio.abs());
    let Some([low, high]) = interval else {
        return format!("Too few steps for a conclusion: {from_to}, with unknown variance.");
    };
    let between = format!("95 % interval {:+.1} % to {:+.1} %", low * 100.0, high * 100.0);
    let mut text = match told {
        Told::Worse => {
            format!("B is worse: {by} slower ({from_to}; {between}), beyond the noise within the runs.")
        }
        Told::Better => {
            format!("B is better: {by} faster ({from_to}; {between}), beyond the noise within the runs.")
        }
        _ if ratio.abs() < NOTEWORTHY => format!("No relevant difference: {from_to} ({between})."),
        _ => format!("No difference beyond the noise: {from_to} ({between})."),
    };
    if a.world_size != b.world_size && a.world_size > 0 && b.world_size > 0 {
        let kept = mean_s[0] / mean_s[1];
        text += &format!(
            " They have {} and {} ranks: with the same work per rank, each rank keeps {} of its speed.",
            a.world_size,
            b.world_size,
            percent(kept)
        );
    } else if told != Told::Unknown {
        text +=
            " The natural difference between two runs of the same job cannot be determined from two runs.";
    }
    text
}

/// Formats a signed percentage, such as `+4.2 %`.
pub(super) fn signed(ratio: f64) -> String {
    if ratio > 0.0 {
        format!("+{}", percent(ratio))
    } else {
        percent(ratio)
    }
}
