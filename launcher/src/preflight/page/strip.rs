//! Draws one strip plot for each metric. Every GPU, node or path is a mark at its value, so that outliers stand apart.
//! The shapes of the marks convey the same as their colors.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use paceline_health::preflight::{Better, Metric, Place, PreflightTable, Report};
use paceline_health::verdict::Severity;

use super::show;
use crate::html::escape;

const WIDTH: f64 = 920.0;
const LEFT: f64 = 12.0;
const RIGHT: f64 = 12.0;
const LANE: f64 = 9.0;
const LANES: usize = 7;
const TOP: f64 = 22.0;
/// Maximum number of marks without findings. If there are more, an evenly spaced sample is drawn.
const DRAWN: usize = 1500;
/// Two numbers closer to each other than this would overlap.
const CROWDED: f64 = 50.0;
/// Maximum number of labeled marks.
const NAMED: usize = LANES;

struct Mark {
    value: f64,
    name: String,
    severity: Option<Severity>,
}

/// Draws all strip plots.
pub(super) fn all(report: &Report, table: &PreflightTable) -> String {
    let mut text = String::new();
    for metric in Metric::ALL {
        let marks = marks(report, table, metric);
        // Draw no plot for a single value, because it has nothing to compare with.
        if marks.len() > 1 {
            text += &strip(metric, &marks, table);
        }
    }
    if text.is_empty() {
        return text;
    }
    format!(
        "<h2>All values</h2><p class=\"faint\">A circle is one GPU, node or path; a triangle is a warning, a \
         cross is bad. The line is the median; in the shaded area a value is worse by more than the limit.</p>{text}"
    )
}

/// Returns the best value of each place, with the severity of the findings about it.
fn marks(report: &Report, table: &PreflightTable, metric: Metric) -> Vec<Mark> {
    let row = table.metric(metric);
    let mut best: BTreeMap<&Place, f64> = BTreeMap::new();
    for sample in report.samples.iter().filter(|sample| sample.metric == metric) {
        let known = best.entry(&sample.place).or_insert(sample.value);
        *known = row.best(*known, sample.value);
    }
    let found = |place: &Place| {
        let of_it = report.findings.iter();
        let of_it = of_it.filter(|noted| noted.metric() == Some(metric) && noted.concerns(place));
        of_it.map(|noted| noted.severity).max()
    };
    let marks = best.into_iter().map(|(place, value)| Mark {
        value,
        name: place.to_string(),
        severity: found(place),
    });
    marks.collect()
}

fn strip(metric: Metric, marks: &[Mark], table: &PreflightTable) -> String {
    let (head, unit, scale) = show::unit(metric);
    let row = table.metric(metric);
    let mut values: Vec<f64> = marks.iter().map(|mark| mark.value).collect();
    values.sort_by(f64::total_cmp);
    let median = values[values.len() / 2];
    let limit = match row.better {
        Better::Higher => median * (1.0 - row.fail),
        Better::Lower => (median * (1.0 + row.fail)).max(median + row.floor),
    };
    let (low, high) = (values[0].min(limit), values[values.len() - 1].max(limit));
    let margin = ((high - low) * 0.05).max(high.abs() * 1e-6).max(1e-12);
    let (low, high) = (low - margin, high + margin);
    let x = |value: f64| LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT);
    let height = TOP + LANE * LANES as f64 + 20.0;
    let bottom = height - 18.0;
    let (from, to) = match row.better {
        Better::Higher => (LEFT, x(limit)),
        Better::Lower => (x(limit), WIDTH - RIGHT),
    };
    let mut text = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{head}\"><text x=\"{LEFT}\" y=\"13\"><tspan \
         font-weight=\"600\">{head}</tspan> <tspan class=\"faint\">{unit}, {}</tspan></text><rect x=\"{from:.1}\" \
         y=\"{TOP}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"var(--bad-bg)\" opacity=\".55\"/><line x1=\"{m:.1}\" \
         x2=\"{m:.1}\" y1=\"{TOP}\" y2=\"{bottom}\" stroke=\"var(--faint)\"/>",
        escape(&of_how_many(marks.len())),
        (to - from).max(0.0),
        bottom - TOP,
        m = x(median),
    );
    for (value, anchor) in [
        (values[0], "start"),
        (median, "middle"),
        (values[values.len() - 1], "end"),
    ] {
        // If two numbers would overlap, print only the median.
        if anchor != "middle" && (x(value) - x(median)).abs() < CROWDED {
            continue;
        }
        let _ = write!(
            text,
            "<text class=\"faint\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
            x(value),
            height - 5.0,
            show::number(value * scale)
        );
    }
    text += &dots(marks, &x);
    text + "</svg>"
}

fn of_how_many(count: usize) -> String {
    match count.div_ceil(DRAWN) {
        1 => format!("{count} measured"),
        one_in => format!("{count} measured, one in {one_in} drawn, and all with findings"),
    }
}

fn dots(marks: &[Mark], x: &dyn Fn(f64) -> f64) -> String {
    let mut text = String::new();
    let one_in = marks.len().div_ceil(DRAWN);
    let lane = |number: usize| TOP + LANE * (number as f64 + 0.5);
    let quiet = marks.iter().filter(|mark| mark.severity.is_none());
    for (number, mark) in quiet.enumerate().filter(|(number, _)| number % one_in == 0) {
        // Spread the marks over the lanes. The vertical position has no meaning.
        let y = lane(number * 3 % LANES);
        let _ = write!(
            text,
            "<circle cx=\"{:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"none\" stroke=\"var(--well)\"><title>{}</title></circle>",
            x(mark.value),
            escape(&mark.name)
        );
    }
    let loud = marks.iter().filter(|mark| mark.severity.is_some());
    for (number, mark) in loud.enumerate() {
        let (cx, cy) = (x(mark.value), lane(number % LANES));
        let (color, path) = match mark.severity {
            Some(Severity::Critical) => ("bad", format!("M{:.1} {:.1}l8 8m0-8l-8 8", cx - 4.0, cy - 4.0)),
            _ => ("warn", format!("M{cx:.1} {:.1}l5 9h-10z", cy - 5.0)),
        };
        let name = escape(&mark.name);
        let _ = write!(
            text,
            "<path d=\"{path}\" fill=\"none\" stroke=\"var(--{color})\" stroke-width=\"2\"><title>{name}</title></path>"
        );
        if number < NAMED {
            let (at, anchor) = if cx > WIDTH * 0.6 {
                (cx - 8.0, "end")
            } else {
                (cx + 8.0, "start")
            };
            let _ = write!(
                text,
                "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" style=\"font-size:11px\">{name}</text>",
                cy + 4.0
            );
        }
    }
    text
}
