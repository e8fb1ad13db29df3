//! Draws the step times, and how the time was spent, on the heat map's axis.

use paceline_health::report::history::{Column, History};
use paceline_health::text::humanize::span;

use super::heat::frame;
use super::{LEFT, RIGHT, WIDE};
use crate::html::Html;

/// Height of a plot, and of the space below it for the numbers.
const TALL: f64 = 110.0;
const BELOW: f64 = 18.0;
/// A step this many times longer than usual is cut off at the top. Otherwise the other steps would be a flat line.
const TOP: f64 = 4.0;
/// Names and classes of the phases, in the order of [`Column::phases_s`].
const PHASES: [(&str, &str); 5] = [
    ("data loading", "<path class=\"p0\" d=\""),
    ("compute", "<path class=\"p1\" d=\""),
    ("waiting and communication", "<path class=\"p2\" d=\""),
    ("optimizer", "<path class=\"p3\" d=\""),
    ("checkpoint", "<path class=\"p4\" d=\""),
];
const SWATCHES: [&str; 5] = [
    "<i class=\"p0\"></i>",
    "<i class=\"p1\"></i>",
    "<i class=\"p2\"></i>",
    "<i class=\"p3\"></i>",
    "<i class=\"p4\"></i>",
];

/// Draws both plots, one below the other.
pub(super) fn draw(history: &History) -> Html {
    let mut html = steps(history);
    html.part(phases(history));
    html
}

/// Draws the median and the longest step of each column.
fn steps(history: &History) -> Html {
    let columns = &history.columns;
    let longest = columns.iter().map(|column| column.max_s).fold(0.0, f64::max);
    let usual = usual(columns);
    let top = usual
        .map_or(longest, |usual| longest.min(usual * TOP))
        .max(f64::MIN_POSITIVE);
    let beyond = columns
        .iter()
        .filter(|column| column.max_s > top * 1.0001)
        .count();
    let mut html = Html::default();
    html.tag("<h2>Step time</h2><p class=\"legend\"><i class=\"median\"></i>median of the ranks <i class=\"longest\"></i>longest of any rank");
    if beyond > 0 {
        html.tag("; ")
            .text(beyond)
            .tag(" columns go beyond the top, the longest step took ")
            .text(span(longest));
    }
    html.tag("</p>");
    open(&mut html, "Step time from the first step to the last");
    scale(&mut html, top);
    let y = |seconds: f64| 2.0 + TALL * (1.0 - (seconds / top).clamp(0.0, 1.0));
    let of_longest = columns
        .iter()
        .enumerate()
        .map(|(index, column)| (index, Some(y(column.max_s))));
    line(
        &mut html,
        "<path class=\"longest\" d=\"",
        of_longest,
        columns.len(),
    );
    let of_median = columns
        .iter()
        .enumerate()
        .map(|(index, column)| (index, column.p50_s.map(y)));
    line(&mut html, "<path class=\"median\" d=\"", of_median, columns.len());
    restarts(&mut html, columns);
    axis(&mut html, columns);
    html.tag("</svg></div>");
    html
}

/// Draws the parts of a step, stacked.
fn phases(history: &History) -> Html {
    let columns = &history.columns;
    let mut html = Html::default();
    html.tag("<h2>Time per phase</h2>");
    let told = columns.iter().filter_map(|column| column.phases_s);
    let sums = told.map(|phases| phases.iter().sum::<f64>());
    let top = sums.fold(0.0, f64::max);
    if top <= 0.0 {
        html.tag(
            "<p class=\"none\">Not measured: no rank reported phases. They come from the Python hook \
             (<code>paceline run</code> loads it into the trainers) or from the explicit API.</p>",
        );
        return html;
    }
    let usual = usual(columns).unwrap_or(top);
    let top = top.min(usual * TOP);
    html.tag("<p class=\"legend\">");
    for (swatch, (name, _)) in SWATCHES.iter().zip(PHASES) {
        html.tag(swatch).text(name).tag(" ");
    }
    html.tag("(mean of the ranks)</p>");
    open(&mut html, "Parts of a step from the first step to the last");
    scale(&mut html, top);
    for (part, (_, path)) in PHASES.iter().enumerate().rev() {
        html.tag(path);
        area(&mut html, columns, |column| {
            let below: f64 = column.phases_s?.iter().take(part + 1).sum();
            Some(2.0 + TALL * (1.0 - (below / top).clamp(0.0, 1.0)))
        });
        html.tag("\"/>");
    }
    axis(&mut html, columns);
    html.tag("</svg></div>");
    html
}

/// Returns the median of the columns' medians.
fn usual(columns: &[Column]) -> Option<f64> {
    let mut medians: Vec<f64> = columns.iter().filter_map(|column| column.p50_s).collect();
    medians.sort_by(f64::total_cmp);
    medians.get(medians.len() / 2).copied()
}

fn open(html: &mut Html, says: &'static str) {
    html.tag("<div class=\"wide\" tabindex=\"0\"><svg class=\"plot\" viewBox=\"0 0 ")
        .number(WIDE)
        .tag(" ")
        .number(TALL + BELOW + 4.0)
        .tag("\" role=\"img\" aria-label=\"")
        .text(says)
        .tag("\">");
    frame(html, TALL);
}

/// Returns the x coordinate of a column's left edge.
fn x(index: usize, columns: usize) -> f64 {
    LEFT + (WIDE - LEFT - RIGHT) * index as f64 / columns.max(1) as f64
}

/// Draws grid lines at zero, the middle and the top.
fn scale(html: &mut Html, top: f64) {
    for share in [0.0, 0.5, 1.0] {
        let y = 2.0 + TALL * (1.0 - share);
        html.tag("<text class=\"axis\" text-anchor=\"end\" x=\"")
            .number(LEFT - 6.0)
            .tag("\" y=\"")
            .number((y + 4.0).max(11.0))
            .tag("\">")
            .text(span(top * share))
            .tag("</text><line class=\"grid\" x1=\"")
            .number(LEFT)
            .tag("\" x2=\"")
            .number(WIDE - RIGHT)
            .tag("\" y1=\"")
            .number(y)
            .tag("\" y2=\"")
            .number(y)
            .tag("\"/>");
    }
}

/// Draws a line through the columns' centers. Missing values are gaps.
fn line(
    html: &mut Html,
    path: &'static str,
    points: impl Iterator<Item = (usize, Option<f64>)>,
    columns: usize,
) {
    html.tag(path);
    let half = (x(1, columns) - x(0, columns)) / 2.0;
    let mut drawn = false;
    for (index, y) in points {
        let Some(y) = y else {
            drawn = false;
            continue;
        };
        let at = x(index, columns);
        // Draw a line also for a single column.
        html.tag(if drawn { "L" } else { "M" })
            .number(if drawn { at + half } else { at })
            .tag(" ")
            .number(y);
        if !drawn {
            html.tag("L").number(at + half).tag(" ").number(y);
        }
        drawn = true;
    }
    html.tag("\"/>");
}

/// Draws the area below the columns' heights as a staircase, because a mean must not be interpolated.
fn area(html: &mut Html, columns: &[Column], top: impl Fn(&Column) -> Option<f64>) {
    let bottom = 2.0 + TALL;
    html.tag("M").number(LEFT).tag(" ").number(bottom);
    for (index, column) in columns.iter().enumerate() {
        let y = top(column).unwrap_or(bottom);
        html.tag("L").number(x(index, columns.len())).tag(" ").number(y);
        html.tag("H").number(x(index + 1, columns.len()));
    }
    html.tag("L")
        .number(WIDE - RIGHT)
        .tag(" ")
        .number(bottom)
        .tag("Z");
}

/// Marks the restarts of the job.
fn restarts(html: &mut Html, columns: &[Column]) {
    for (index, two) in columns.windows(2).enumerate() {
        if two[0].restart == two[1].restart {
            continue;
        }
        let at = x(index + 1, columns.len());
        html.tag("<line class=\"restart\" x1=\"")
            .number(at)
            .tag("\" x2=\"")
            .number(at)
            .tag("\" y1=\"2\" y2=\"")
            .number(TALL + 2.0)
            .tag("\"/><text class=\"axis\" x=\"")
            .number(at + 3.0)
            .tag("\" y=\"12\">restart ")
            .text(two[1].restart)
            .tag("</text>");
    }
}

/// Draws the step numbers.
fn axis(html: &mut Html, columns: &[Column]) {
    let last = columns.len().saturating_sub(1);
    let mut before = None;
    for place in 0..=4 {
        let index = last * place / 4;
        let Some(column) = columns.get(index).filter(|_| before != Some(index)) else {
            continue;
        };
        before = Some(index);
        let anchor = match place {
            0 => "<text class=\"axis\" text-anchor=\"start\" x=\"",
            4 => "<text class=\"axis\" text-anchor=\"end\" x=\"",
            _ => "<text class=\"axis\" text-anchor=\"middle\" x=\"",
        };
        let at = match place {
            0 => LEFT,
            4 => WIDE - RIGHT,
            _ => x(index, columns.len()),
        };
        // Label the first column with its first step.
        let step = if place == 0 {
            (column.step + 1).saturating_sub(column.steps)
        } else {
            column.step
        };
        html.tag(anchor)
            .number(at)
            .tag("\" y=\"")
            .number(TALL + BELOW)
            .tag("\">step ")
            .text(step)
            .tag("</text>");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::html;

    fn column(step: u64, p50_s: Option<f64>, restart: u32) -> Column {
        Column {
            step,
            steps: 1,
            restart,
            p50_s,
            max_s: p50_s.unwrap_or(50.0),
            phases_s: p50_s.map(|s| [0.1 * s, 0.6 * s, 0.2 * s, 0.1 * s, 0.0]),
            ..Column::default()
        }
    }

    fn drawn(columns: Vec<Column>) -> String {
        let history = History {
            ranks_a_row: 1,
            is_self: true,
            columns,
        };
        html::Html::page("t", "", draw(&history))
    }

    #[test]
    fn an_outlier_does_not_flatten_the_rest_and_a_restart_is_marked() {
        let columns = (1..=10).map(|step| match step {
            5 => column(step, None, 0),
            step => column(step, Some(0.1), u32::from(step > 7)),
        });
        let page = drawn(columns.collect());
        html::tests::assert_balanced(&page);
        assert!(
            page.contains("1 columns go beyond the top, the longest step took 50.0 s"),
            "{page}"
        );
        assert!(page.contains("400.0 ms"), "the top of the scale: {page}");
        assert_eq!(page.matches(">restart 1<").count(), 1);
        assert!(page.contains(">step 1<") && page.contains(">step 10<"));
    }

    /// The live page and the report use the same names and colors for phases.
    #[test]
    fn a_phase_has_one_name_and_one_colour_on_all_pages() {
        let live = include_str!("../../../../sidecar/src/sink/page/web/band.js");
        for (part, (name, _)) in PHASES.iter().enumerate() {
            let variable = format!("--p{part}:");
            let style = super::super::STYLE;
            let colour = style.split(&variable).nth(1).unwrap().get(..7).unwrap();
            assert_eq!(
                live.matches(&format!("'{colour}'")).count(),
                2,
                "{name} {colour}, light and dark"
            );
            assert!(live.contains(&format!("'{name}'")), "{name}");
        }
    }

    #[test]
    fn what_nobody_told_is_said_to_be_unknown() {
        let bare = Column {
            phases_s: None,
            ..column(1, Some(0.1), 0)
        };
        let page = drawn(vec![bare]);
        html::tests::assert_balanced(&page);
        assert!(
            page.contains("Not measured") && !page.contains("class=\"p1\" d"),
            "{page}"
        );
    }
}
