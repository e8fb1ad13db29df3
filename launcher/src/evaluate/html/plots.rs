//! The plots of recall by slowdown, and of the time to decision.

use std::collections::BTreeMap;

use super::svg::{Frame, Line};
use crate::evaluate::baselines::NAMES;
use crate::evaluate::score::{self, Case};
use crate::evaluate::suite::Suite;

/// The name, suites and title of each recall plot.
const RECALLS: [(&[Suite], &str); 2] = [
    (
        &[Suite::Floor, Suite::Quiet],
        "Share found by slowdown, steps vary by 0.5 %",
    ),
    (&[Suite::Noisy], "Share found by slowdown, steps vary by 11 %"),
];

const PACES: [(&str, &str); 3] = [
    ("pace-20-quiet", "20 %, sigma 0.5 %"),
    ("pace-20-noisy", "20 %, sigma 11 %"),
    ("pace-10-noisy", "10 %, sigma 11 %"),
];

/// Returns the titles and SVG of all plots that have samples.
pub(super) fn all(cases: &[Case<'_>]) -> Vec<(String, String)> {
    let recalls = RECALLS
        .iter()
        .filter_map(|(suites, title)| Some(((*title).to_owned(), recall(cases, suites)?)));
    let pace = pace(cases).map(|plot| {
        (
            "Share decided after so many slow steps, 64 ranks".to_owned(),
            plot,
        )
    });
    recalls.chain(pace).collect()
}

/// Plots the share of slow ranks that were found, by slowdown in permille. Our curve comes first, then those of the
/// other rules.
fn recall(cases: &[Case<'_>], suites: &[Suite]) -> Option<String> {
    let mut counts: BTreeMap<u64, (f64, [f64; NAMES.len() + 1])> = BTreeMap::new();
    for case in cases.iter().filter(|case| suites.contains(&case.scenario.suite)) {
        let (Some(slower), Some(found)) = (case.scenario.slower, score::found_by(case)) else {
            continue;
        };
        let (all, hits) = counts.entry((slower * 1000.0).round() as u64).or_default();
        *all += 1.0;
        for (hits, found) in hits.iter_mut().zip(found) {
            *hits += f64::from(u8::from(found));
        }
    }
    if counts.is_empty() {
        return None;
    }
    let lines = std::iter::once("paceline")
        .chain(NAMES)
        .enumerate()
        .map(|(index, name)| Line {
            name: name.to_owned(),
            points: counts
                .iter()
                .map(|(slower, (all, hits))| (*slower as f64 / 10.0, hits[index] / all))
                .collect(),
        });
    let marks = [2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 300.0];
    let frame = Frame {
        x: "slower than its peers",
        y: "share found",
        log_x: true,
        x_marks: marks.iter().map(|mark| (*mark, format!("{mark} %"))).collect(),
        y_marks: shares(),
    };
    Some(frame.draw(&lines.collect::<Vec<_>>()))
}

fn pace(cases: &[Case<'_>]) -> Option<String> {
    let mut lines = Vec::new();
    for (scenario, name) in PACES {
        let mut delays = score::delays(cases, scenario, None);
        if delays.is_empty() {
            continue;
        }
        delays.sort_by(f64::total_cmp);
        let all = delays.len() as f64;
        // Draw a step at each delay. Missing decisions keep the curve below one.
        let mut points = vec![(1.0, 0.0)];
        for (index, delay) in delays.iter().enumerate().filter(|(_, delay)| delay.is_finite()) {
            points.push((*delay, index as f64 / all));
            points.push((*delay, (index + 1) as f64 / all));
        }
        let last = points.last().map_or(0.0, |(_, share)| *share);
        points.push((1000.0, last));
        lines.push(Line {
            name: name.to_owned(),
            points,
        });
    }
    let marks = [1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0];
    let frame = Frame {
        x: "steps since it became slow",
        y: "share decided",
        log_x: true,
        x_marks: marks.iter().map(|mark| (*mark, mark.to_string())).collect(),
        y_marks: shares(),
    };
    (!lines.is_empty()).then(|| frame.draw(&lines))
}

fn shares() -> Vec<(f64, String)> {
    [0.0, 0.25, 0.5, 0.75, 1.0]
        .iter()
        .map(|share| (*share, format!("{:.0} %", share * 100.0)))
        .collect()
}
