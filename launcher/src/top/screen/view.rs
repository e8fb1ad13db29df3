//! Formats the screen: which rank is slow, why, since when, what it costs and what to do, and then all ranks. The
//! result depends only on the state and on the available room.

use paceline_health::text::humanize::{count, hours, percent, span};

use super::answer;
use super::detail;
use super::paper::{Line, width, wrap};
use super::say;
use super::table::Table;
use crate::output::{Paint, Style};
use crate::top::app::{App, Link, Page};

/// A screen with fewer lines than this has one headline and no empty lines.
const LOW: usize = 16;
/// A phase with a smaller share is omitted from the headline.
const SEEN: f64 = 0.05;
/// The names of the phases, as they are shown in a line.
const PHASES: [&str; 5] = ["data", "compute", "wait", "optimizer", "checkpoint"];

/// A formatted screen, with the positions that the handling of keys needs.
#[derive(Debug)]
pub(crate) struct Screen {
    pub(crate) lines: Vec<Line>,
    /// Index of the first rank that is displayed, and number of displayed ranks.
    pub(crate) first: usize,
    pub(crate) rows: usize,
    /// The scroll position, limited by the length of the page.
    pub(crate) scrolled: usize,
}

/// Formats a screen of this size.
pub(crate) fn screen(app: &App, columns: usize, height: usize, style: Style) -> Screen {
    let body = height.saturating_sub(1);
    let mut screen = match app.page {
        Page::Ranks => ranks(app, columns, body, style),
        page => {
            let lines = detail::lines(app, page, columns, style);
            scrolled(lines, app, body)
        }
    };
    screen.lines.truncate(body);
    screen.lines.resize_with(body, Line::new);
    screen.lines.push(foot(app, &screen, columns, style));
    for line in &mut screen.lines {
        line.cut(columns, style);
    }
    screen
}

/// Formats plain output, which has the whole answer and `rows` ranks.
pub(crate) fn plain(app: &App, columns: usize, rows: usize, style: Style) -> Vec<Line> {
    let mut lines = head(app, columns, false, style);
    lines.extend(aside(app, columns, usize::MAX, style));
    lines.extend(notices(app, columns, style));
    lines.extend(answer::lines(app, columns, usize::MAX, style));
    lines.push(Line::new());
    let table = Table::of(app, columns, style);
    lines.push(table.head());
    lines.extend(
        app.order
            .iter()
            .take(rows)
            .map(|rank| table.row(&app.job.rank(*rank), false)),
    );
    if app.order.len() > rows {
        let more = count((app.order.len() - rows) as u64, "more rank");
        lines.push(Line::new().painted(Paint::Faint, format!("  and {more}")));
    }
    for line in &mut lines {
        line.cut(columns, style);
    }
    lines
}

fn ranks(app: &App, columns: usize, body: usize, style: Style) -> Screen {
    let is_low = body < LOW;
    let mut lines = head(app, columns, is_low, style);
    lines.extend(aside(app, columns, if is_low { 1 } else { 2 }, style));
    lines.extend(notices(app, columns, style));
    // Give the answer the lines that the ranks do not need, or half of all lines if this is more.
    let free = body.saturating_sub(lines.len() + 1 + usize::from(!is_low));
    let most = (free / 2).max(free.saturating_sub(app.order.len().max(1)));
    lines.extend(answer::lines(app, columns, most, style));
    if !is_low {
        lines.push(Line::new());
    }
    let table = Table::of(app, columns, style);
    lines.push(table.head());
    let rows = body.saturating_sub(lines.len());
    let place = app.place();
    // Keep the selected rank on the screen.
    let first = app
        .first
        .clamp((place + 1).saturating_sub(rows).min(place), place);
    let shown = app.order.iter().enumerate().skip(first).take(rows);
    lines.extend(shown.map(|(at, rank)| {
        let is_selected = app.selected.is_some() && at == place;
        table.row(&app.job.rank(*rank), is_selected)
    }));
    if app.order.is_empty() {
        let text = if app.filter.is_empty() {
            "  No rank was observed yet."
        } else {
            "  No rank matches the filter."
        };
        lines.push(Line::of(text));
    }
    Screen {
        lines,
        first,
        rows,
        scrolled: 0,
    }
}

fn scrolled(lines: Vec<Line>, app: &App, body: usize) -> Screen {
    let scrolled = app.scrolled.min(lines.len().saturating_sub(body));
    Screen {
        lines: lines.into_iter().skip(scrolled).collect(),
        first: app.first,
        rows: body,
        scrolled,
    }
}

/// Formats the job in one or two lines.
fn head(app: &App, columns: usize, is_low: bool, style: Style) -> Vec<Line> {
    let dot = style.glyph(" · ", ", ");
    let job = &app.job;
    let Some(report) = &job.report else {
        return vec![state(
            Line::new().painted(Paint::Strong, app.address.clone()),
            app,
            columns,
            style,
        )];
    };
    let step = job.step.map_or(report.steps, |step| step.step.max(report.steps));
    let mut facts = vec![format!("step {}", say::grouped(step))];
    facts.extend(report.median_s.map(|median| format!("{} a step", span(median))));
    facts.extend(
        report
            .cost
            .goodput
            .map(|goodput| format!("goodput {}", percent(goodput))),
    );
    let facts = facts.join(dot);
    // Shorten the name, because the facts about the job are more important.
    let name = match report.job.as_str() {
        "" => "(no name)",
        name => name,
    };
    let name = super::paper::clip(name, columns.saturating_sub(width(&facts) + 12).max(8), style);
    let first = Line::new()
        .painted(Paint::Strong, name)
        .plain(format!("{dot}{facts}"));
    let mut lines = vec![state(first, app, columns, style)];
    if !is_low {
        lines.push(Line::new().painted(Paint::Faint, second(app, columns, dot)));
    }
    lines
}

/// Returns further facts about the job, as far as they fit.
fn second(app: &App, columns: usize, dot: &str) -> String {
    let job = &app.job;
    let Some(report) = &job.report else {
        return String::new();
    };
    let ranks = count(report.world.max(job.len() as u64), "rank");
    let mut facts = vec![format!("{ranks} on {}", count(job.nodes() as u64, "node"))];
    if let Some(step) = job.step {
        let times = format!("p50 {}, longest {}", span(step.p50_s), span(step.max_s));
        facts.push(times);
        if let Some(phases) = step.phases_s {
            let whole: f64 = phases.iter().sum();
            let told = PHASES
                .iter()
                .zip(phases)
                .filter(|(_, phase_s)| phase_s / whole >= SEEN);
            let told: Vec<String> = told
                .map(|(name, phase_s)| format!("{name} {}", percent(phase_s / whole)))
                .collect();
            facts.push(told.join(", "));
        }
    }
    if report.cost.lost_gpu_hours > 0.0 {
        facts.push(format!(
            "{} lost",
            hours(report.cost.lost_gpu_hours, say::whose(job))
        ));
    }
    let mut text = String::new();
    for fact in facts.iter().filter(|fact| !fact.is_empty()) {
        let more = if text.is_empty() { 0 } else { width(dot) };
        if width(&text) + more + width(fact) > columns {
            continue;
        }
        if more > 0 {
            text.push_str(dot);
        }
        text.push_str(fact);
    }
    text
}

/// Adds the state of the connection at the end of the line.
fn state(line: Line, app: &App, columns: usize, style: Style) -> Line {
    let (paint, text) = match &app.link {
        _ if app.is_paused => (Paint::Warn, "PAUSED"),
        Link::Live => (Paint::Good, "live"),
        Link::Away { .. } => (Paint::Warn, "NO ANSWER"),
        Link::Ended(_) => (Paint::Strong, "ENDED"),
    };
    line.with_end(Some(paint), text, columns, style)
}

/// Returns the note that other jobs of this user are running, in at most `most` lines.
fn aside(app: &App, columns: usize, most: usize, style: Style) -> Vec<Line> {
    let Some(aside) = &app.aside else {
        return Vec::new();
    };
    let (paint, sign) = if aside.is_warning {
        (Paint::Warn, style.glyph("▲ ", "! "))
    } else {
        (Paint::Faint, "")
    };
    let lines = wrap(&format!("{sign}{}", aside.text), columns)
        .into_iter()
        .take(most);
    lines.map(|text| Line::new().painted(paint, text)).collect()
}

/// Returns the caveats about the displayed data.
fn notices(app: &App, columns: usize, style: Style) -> Vec<Line> {
    let told = match &app.link {
        Link::Away { for_s, why } => Some((
            Paint::Warn,
            format!(
                "No answer from {} for {}: {why}. Retrying; this is its last data.",
                app.address,
                say::lasting(*for_s as f64)
            ),
        )),
        Link::Ended(end) => {
            let end = end
                .as_deref()
                .or(app.job.report.as_ref().and_then(|report| report.end.as_ref()));
            let how = end.map_or_else(String::new, |end| {
                let says = if end.says.as_str().is_empty() {
                    String::new()
                } else {
                    format!(" ({})", end.says)
                };
                format!(": {}{says}", end.reason)
            });
            let dir = app.job.report.as_ref().map(|report| report.dir.to_string());
            let rest = dir.map_or_else(String::new, |dir| format!(" The report: paceline report {dir}"));
            Some((Paint::Strong, format!("The job has ended{how}.{rest}")))
        }
        Link::Live => still(app),
    };
    let Some((paint, text)) = told else {
        return Vec::new();
    };
    let lines = wrap(&text, columns.saturating_sub(2)).into_iter().take(2);
    let sign = match paint {
        Paint::Warn => style.glyph("▲", "!"),
        _ => style.glyph("■", "#"),
    };
    let mut sign = std::iter::once(sign).chain(std::iter::repeat(" "));
    lines
        .map(|text| Line::new().painted(paint, format!("{} {text}", sign.next().unwrap_or(" "))))
        .collect()
}

/// Returns a note if no more steps arrive.
fn still(app: &App) -> Option<(Paint, String)> {
    let usual = app.job.report.as_ref()?.median_s?;
    (app.still_s > (usual * 5.0).max(5.0)).then(|| {
        let text = format!(
            "No step was finished by all ranks for {} (one usually takes {}).",
            say::lasting(app.still_s),
            span(usual)
        );
        (Paint::Warn, text)
    })
}

/// Formats the keys, and the displayed range of the ranks.
fn foot(app: &App, screen: &Screen, columns: usize, style: Style) -> Line {
    if app.is_typing {
        let text = format!("filter: {}_", app.filter);
        return Line::new().painted(Paint::Strong, text).with_end(
            Some(Paint::Faint),
            "Enter keep  Esc clear",
            columns,
            style,
        );
    }
    if app.page != Page::Ranks {
        return Line::new()
            .painted(Paint::Strong, "Esc")
            .plain(" back  up/down scroll  n next finding  q quit");
    }
    let order = if app.is_reversed { " reversed" } else { "" };
    let mut text = format!(" quit  / filter  s sort: {}{order}  ", app.sort.name());
    if !app.filter.is_empty() {
        text = format!(" quit  filter: {}  ", app.filter);
    }
    let all = app.order.len();
    let shown = format!(
        "{} of {}",
        match screen.rows {
            // The heading and the answer take all lines, so no rank is displayed.
            0 => "none".to_owned(),
            rows => format!("{}-{}", all.min(screen.first + 1), all.min(screen.first + rows)),
        },
        say::grouped(all as u64)
    );
    Line::new()
        .painted(Paint::Strong, "q")
        .plain(text + "Enter rank  d finding  ? keys")
        .with_end(None, &shown, columns, style)
}
