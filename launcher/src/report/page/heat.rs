//! Draws a heat map of ranks by steps. It shows each rank's self-time relative to its peers, from the first step to the
//! last.

use paceline_health::report::Report;
use paceline_health::report::history::{Column, History};
use paceline_health::report::step_snapshot::{ABSENT, LEVEL, ratio};
use paceline_health::text::humanize::count;
use paceline_health::verdict::Subject;

use super::png::{self, Color};
use super::{LEFT, RIGHT, WIDE};
use crate::html::Html;

/// Height of a row, and maximum height of the whole heat map.
const ROW: f64 = 16.0;
const TALLEST: f64 = 260.0;
/// Minimum distance between the labels of two rows.
const NAME: f64 = 13.0;
/// A column counts as warm-up if it takes at least this many times longer than usual, because caches fill and kernels
/// are compiled.
const WARM: f64 = 1.2;
/// Maximum number of verdicts that are marked next to their rows.
const MARKED: usize = 24;

/// Color stops, by the ratio to the peers. The colors are visible on white and on black. The peers' own pace is
/// transparent.
const STOPS: [(f64, [f64; 4]); 7] = [
    (0.6, [60.0, 130.0, 195.0, 230.0]),
    (0.97, [60.0, 130.0, 195.0, 0.0]),
    (1.03, [235.0, 190.0, 90.0, 0.0]),
    (1.08, [235.0, 175.0, 60.0, 200.0]),
    (1.25, [226.0, 112.0, 30.0, 255.0]),
    (1.6, [205.0, 30.0, 34.0, 255.0]),
    (3.0, [140.0, 0.0, 70.0, 255.0]),
];
/// The color of missing data.
const NOTHING: Color = [128, 136, 146, 170];
/// The entries of the legend.
const KEYS: [(f64, &str); 5] = [
    (0.8, "0.8x"),
    (1.0, "as its peers"),
    (1.08, "1.08x"),
    (1.25, "1.25x"),
    (1.6, "1.6x and more"),
];

/// Draws the heat map with its axes and its legend.
pub(super) fn draw(report: &Report, history: &History) -> Html {
    let rows = rows(history);
    let height = (rows as f64 * ROW).min(TALLEST);
    let mut html = Html::default();
    html.tag("<h2>Ranks by steps</h2>").part(legend(history));
    html.tag("<div class=\"wide\" tabindex=\"0\"><svg class=\"plot\" viewBox=\"0 0 ")
        .number(WIDE)
        .tag(" ")
        .number(height + 4.0)
        .tag("\" role=\"img\" aria-label=\"")
        .text(says(report, history))
        .tag("\">");
    frame(&mut html, height);
    html.tag("<image class=\"cells\" preserveAspectRatio=\"none\" x=\"")
        .number(LEFT)
        .tag("\" y=\"2\" width=\"")
        .number(WIDE - LEFT - RIGHT)
        .tag("\" height=\"")
        .number(height)
        .tag("\" href=\"")
        .png(&png::encode(
            history.columns.len(),
            &pixels(history, rows),
            &palette(),
        ))
        .tag("\"/>");
    warm_ups(&mut html, history, height);
    names(&mut html, history, rows, height);
    marks(&mut html, report, history, rows, height);
    html.tag("</svg></div>");
    html.element("<p class=\"faint\">", says(report, history), "</p>");
    html
}

/// Draws the background of a plot. It is visible where nothing stands out.
pub(super) fn frame(html: &mut Html, height: f64) {
    html.tag("<rect class=\"field\" x=\"")
        .number(LEFT)
        .tag("\" y=\"2\" width=\"")
        .number(WIDE - LEFT - RIGHT)
        .tag("\" height=\"")
        .number(height)
        .tag("\"/>");
}

fn rows(history: &History) -> usize {
    let rows = history.columns.iter().map(|column| column.cells.len());
    rows.max().unwrap_or(0).max(1)
}

/// Returns the pixels row by row. A rank that is missing in a column was not part of the job then.
fn pixels(history: &History, rows: usize) -> Vec<u8> {
    let columns = &history.columns;
    let line = |row: usize| columns.iter().map(move |column| cell(column, row));
    let warm = warm(history);
    let mut pixels: Vec<u8> = (0..rows).flat_map(line).collect();
    // Hatch the warm-ups, whatever their cells contain, because ranks that differ in a warm-up are not slow.
    for (place, pixel) in pixels.iter_mut().enumerate() {
        if warm[place % columns.len()] && *pixel != ABSENT {
            *pixel = LEVEL;
        }
    }
    pixels
}

/// Returns true for the columns of warm-ups. These are the first columns after each start, as long as they take longer
/// than usual or contain no ordinary step.
fn warm(history: &History) -> Vec<bool> {
    let columns = &history.columns;
    let mut medians: Vec<f64> = columns.iter().filter_map(|column| column.p50_s).collect();
    medians.sort_by(f64::total_cmp);
    let usual = medians
        .get(medians.len().saturating_sub(1) / 2)
        .copied()
        .unwrap_or(f64::INFINITY);
    let mut warms = true;
    let mut restart = columns.first().map_or(0, |column| column.restart);
    let is_warm = |column: &Column| {
        warms |= std::mem::replace(&mut restart, column.restart) != column.restart;
        warms &= column.p50_s.is_none_or(|p50| p50 >= WARM * usual);
        warms
    };
    columns.iter().map(is_warm).collect()
}

/// Hatches the columns of warm-ups.
fn warm_ups(html: &mut Html, history: &History, height: f64) {
    let warm = warm(history);
    if !warm.contains(&true) {
        return;
    }
    html.tag("<defs><pattern id=\"warm\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">")
        .tag("<line class=\"hatch\" x1=\"0\" y1=\"0\" x2=\"0\" y2=\"6\"/></pattern></defs>");
    let wide = (WIDE - LEFT - RIGHT) / warm.len() as f64;
    for index in (0..warm.len()).filter(|index| warm[*index]) {
        html.tag("<rect class=\"warm\" x=\"")
            .number(LEFT + index as f64 * wide)
            .tag("\" y=\"2\" width=\"")
            .number(wide)
            .tag("\" height=\"")
            .number(height)
            .tag("\"/>");
    }
}

fn cell(column: &Column, row: usize) -> u8 {
    column.cells.get(row).copied().unwrap_or(ABSENT)
}

fn palette() -> [Color; 256] {
    std::array::from_fn(|cell| ratio(cell as u8).map_or(NOTHING, color))
}

fn color(ratio: f64) -> Color {
    let next = STOPS.iter().position(|(stop, _)| *stop >= ratio);
    let mixed = match next {
        Some(0) => STOPS[0].1,
        None => STOPS[STOPS.len() - 1].1,
        Some(next) => {
            let ((low, from), (high, to)) = (STOPS[next - 1], STOPS[next]);
            let share = (ratio / low).ln() / (high / low).ln();
            std::array::from_fn(|part| from[part] + (to[part] - from[part]) * share)
        }
    };
    mixed.map(|part| part.round() as u8)
}

fn legend(history: &History) -> Html {
    let mut html = Html::default();
    html.tag("<p class=\"legend\">");
    html.text(if history.is_self {
        "self-time relative to its peers: "
    } else {
        "whole steps relative to the median (self-time was not measured): "
    });
    for (value, words) in KEYS {
        swatch(&mut html, color(value));
        html.text(words).tag(" ");
    }
    swatch(&mut html, NOTHING);
    html.tag("no data");
    if warm(history).contains(&true) {
        html.tag(" <i class=\"warm\"></i>warm-up");
    }
    html.tag("</p>");
    html
}

fn swatch(html: &mut Html, [r, g, b, cover]: Color) {
    let whole = |part: u8| f64::from(part);
    html.tag("<i style=\"background:rgba(")
        .number(whole(r))
        .tag(",")
        .number(whole(g))
        .tag(",")
        .number(whole(b))
        .tag(",")
        .number(whole(cover) / 255.0)
        .tag(")\"></i>");
}

/// Draws the rank numbers on the left.
fn names(html: &mut Html, history: &History, rows: usize, height: f64) {
    let tall = height / rows as f64;
    let apart = ((NAME / tall).ceil() as usize).max(1).next_power_of_two();
    let bin = history.ranks_a_row.max(1) as usize;
    for row in (0..rows).step_by(apart) {
        html.tag("<text class=\"axis\" text-anchor=\"end\" x=\"")
            .number(LEFT - 6.0)
            .tag("\" y=\"")
            .number((2.0 + (row as f64 + 0.5) * tall + 4.0).max(11.0))
            .tag("\">");
        html.text(if row == 0 { "rank " } else { "" })
            .text(row * bin)
            .tag("</text>");
    }
}

/// Draws labels of the ranks with findings next to their rows, as many as fit.
fn marks(html: &mut Html, report: &Report, history: &History, rows: usize, height: f64) {
    let tall = height / rows as f64;
    let bin = history.ranks_a_row.max(1) as usize;
    let mut taken: Vec<f64> = Vec::new();
    for verdict in super::by_weight(report) {
        let Subject::Rank { rank, .. } = verdict.subject else {
            continue;
        };
        let y = 2.0 + (rank.0 as usize / bin) as f64 * tall + tall / 2.0;
        let is_free = taken.iter().all(|other| (other - y).abs() >= NAME);
        if !is_free || y > height + 2.0 || taken.len() >= MARKED {
            continue;
        }
        taken.push(y);
        html.tag("<text class=\"mark\" x=\"")
            .number(WIDE - RIGHT + 6.0)
            .tag("\" y=\"")
            .number(y + 4.0)
            .tag("\">◂ rank ")
            .text(rank.0)
            .tag("</text>");
        if verdict.unresolved_at_exit {
            // End the row with a mark if the finding was active when the job ended.
            html.tag("<rect class=\"unresolved\" width=\"4\" x=\"")
                .number(WIDE - RIGHT)
                .tag("\" y=\"")
                .number(y - tall.max(6.0) / 2.0)
                .tag("\" height=\"")
                .number(tall.max(6.0))
                .tag("\"><title>unresolved at exit: ")
                .text(verdict.finding)
                .tag("</title>\n</rect>");
        }
    }
}

/// Describes the heat map, for readers who cannot see it.
fn says(report: &Report, history: &History) -> String {
    let ranks = u64::from(report.world_size);
    let steps: u64 = history
        .columns
        .iter()
        .map(|column| column.steps)
        .fold(0, u64::saturating_add);
    let each = history
        .columns
        .iter()
        .map(|column| column.steps)
        .max()
        .unwrap_or(1);
    let mut text = format!("{} by {}", count(ranks, "rank"), count(steps, "step"));
    if each > 1 {
        text += &format!(", up to {each} to a column (their mean)");
    }
    if history.ranks_a_row > 1 {
        text += &format!(", {} ranks to a row (the slowest of them)", history.ranks_a_row);
    }
    text + "."
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_health::report::step_snapshot::cell;

    #[test]
    fn pace_shows_nothing_and_slow_shows_more_the_slower() {
        let of = |ratio: f64| color(ratio);
        assert_eq!(of(1.0)[3], 0);
        assert!(of(1.08)[3] >= 200 && of(1.25) == [226, 112, 30, 255]);
        assert_eq!((of(0.1), of(9.0)), ([60, 130, 195, 230], [140, 0, 70, 255]));
        let palette = palette();
        assert_eq!((palette[0], palette[usize::from(LEVEL)][3]), (NOTHING, 0));
        let slow = palette[usize::from(cell(f64::ln(1.6)))];
        assert!(slow[0] > 150 && slow[1] < 60, "{slow:?}");
    }

    #[test]
    fn a_warm_up_is_hatched_and_shows_no_slow_rank() {
        let slow = cell(f64::ln(1.6));
        let column = |p50_s: f64, restart: u32, own: u8| Column {
            steps: 1,
            restart,
            p50_s: Some(p50_s),
            cells: vec![LEVEL, own],
            ..Column::default()
        };
        let columns = vec![
            column(9.0, 0, slow),
            column(1.5, 0, ABSENT),
            column(1.0, 0, LEVEL),
            // These columns are long but not at a start, so a slow rank is visible in them.
            column(2.0, 0, slow),
            column(3.0, 1, slow),
            column(1.0, 1, slow),
            column(1.0, 1, LEVEL),
            column(1.0, 1, LEVEL),
        ];
        let history = History {
            ranks_a_row: 1,
            is_self: true,
            columns,
        };
        assert_eq!(
            warm(&history),
            [true, true, false, false, true, false, false, false]
        );
        let own = pixels(&history, 2)[8..14].to_vec();
        assert_eq!(own, [LEVEL, ABSENT, LEVEL, slow, LEVEL, slow]);
        let mut html = Html::default();
        warm_ups(&mut html, &history, 32.0);
        let page = Html::page("t", "", html);
        assert_eq!(page.matches("<rect class=\"warm\"").count(), 3, "{page}");
    }

    #[test]
    fn a_rank_that_came_later_was_absent_before() {
        let column = |cells: Vec<u8>| Column {
            steps: 1,
            cells,
            ..Column::default()
        };
        let history = History {
            ranks_a_row: 1,
            is_self: true,
            columns: vec![column(vec![1, 2]), column(vec![3, 4, 5])],
        };
        assert_eq!(rows(&history), 3);
        let mut steady = history.clone();
        steady
            .columns
            .iter_mut()
            .for_each(|column| column.p50_s = Some(1.0));
        assert_eq!(pixels(&steady, 3), [1, 3, 2, 4, ABSENT, 5]);
    }
}
