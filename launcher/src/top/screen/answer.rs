//! Formats the answer: the worst active finding, or that no problem was observed. The most important facts get the
//! first lines, and the remaining room goes to actions and reasons.

use paceline_health::text::humanize;

use super::paper::{Line, clip, width, wrap};
use super::say;
use crate::output::{Paint, Style};
use crate::top::app::{App, Link};
use crate::top::client::response::{Report, Verdict};

/// Width of a label, including the space after it.
const LABEL: usize = 8;
/// Maximum number of other findings that get a line, if room is unlimited.
const OTHERS: usize = 12;

/// Returns the answer in at most `most` lines.
pub(super) fn lines(app: &App, columns: usize, most: usize, style: Style) -> Vec<Line> {
    let Some((verdict, report)) = app.verdict().zip(app.job.report.as_ref()) else {
        if matches!(app.link, Link::Ended(_)) {
            return Vec::new();
        }
        let (is_well, text) = say::calm(&app.job);
        let (sign, paint) = if is_well {
            (style.glyph("✔", "OK"), Paint::Good)
        } else {
            ("?", Paint::Warn)
        };
        let lines = wrap(&format!("{sign} {text}"), columns).into_iter().take(most);
        return lines.map(|line| Line::new().painted(paint, line)).collect();
    };
    let others = others(app, verdict, columns, style);
    // If there are at least three lines, reserve one for other findings.
    let room_of_others = match most {
        usize::MAX => OTHERS + 1,
        0..3 => 0,
        _ => (most / 4).max(1),
    };
    let told = app.job.raised().count() as u64;
    let others = bounded(others, room_of_others, report.raised.saturating_sub(told));
    let mut lines = vec![headline(app, verdict, columns, style)];
    let room = most.saturating_sub(1 + others.len());
    lines.extend(case(verdict, report, app, columns, room, style));
    lines.extend(others);
    lines.truncate(most);
    lines
}

/// Formats the finding and its subject.
pub(super) fn headline(app: &App, verdict: &Verdict, columns: usize, style: Style) -> Line {
    let (mark, paint) = say::mark(verdict.severity(), style);
    let (mark, word, paint) = if verdict.raised {
        (mark, humanize::severity(verdict.severity()), paint)
    } else {
        (style.glyph("○", "o"), "OVER", Paint::Faint)
    };
    let line = Line::new()
        .painted(paint, format!("{mark} {word} {}", verdict.finding))
        .painted(Paint::Strong, format!(": {}", say::whom(verdict)));
    let all = app.job.verdicts();
    let place = all.iter().position(|one| one.id == verdict.id);
    // For an active finding, count only the active ones. For an ended one, count all, because the ended ones come last.
    let found = app.job.report.as_ref().map_or(0, |report| match verdict.raised {
        true => report.raised,
        false => report.findings,
    });
    match place.filter(|_| found > 1) {
        Some(place) => line.with_end(
            Some(Paint::Faint),
            &format!("{} of {}", place + 1, say::grouped(found)),
            columns,
            style,
        ),
        None => line,
    }
}

/// Formats why, since when, the cost, and the action.
fn case(
    verdict: &Verdict,
    report: &Report,
    app: &App,
    columns: usize,
    room: usize,
    style: Style,
) -> Vec<Line> {
    let mut parts = vec![
        ("why", say::why(verdict)),
        ("cost", say::costs(verdict, &app.job)),
        ("do", verdict.action.to_string()),
        ("since", say::since(verdict, report)),
        ("proof", say::proof(verdict).join("; ")),
    ];
    let notes = say::notes(verdict).join("; ");
    // Put the notes before the proof, because they change what the proof is worth.
    parts.insert(4, ("note", notes));
    let wrapped: Vec<Vec<String>> = parts
        .iter()
        .map(|(_, text)| wrap(text, columns.saturating_sub(LABEL + 2)))
        .collect();
    // Give one line to each part, in order of importance. Further lines go first to the action, then to the others.
    let mut given = vec![0; parts.len()];
    let mut left = room;
    for place in [0, 2, 1, 3, 4, 5] {
        let own = wrapped[place].len().min(1).min(left);
        given[place] = own;
        left -= own;
    }
    for place in [2, 0, 4, 5, 3, 1] {
        let more = (wrapped[place].len() - given[place]).min(if given[place] == 0 { 0 } else { left });
        given[place] += more;
        left -= more;
    }
    let mut lines = Vec::new();
    for (((label, _), texts), given) in parts.iter().zip(wrapped).zip(given) {
        let is_cut = texts.len() > given;
        for (place, mut text) in texts.into_iter().take(given).enumerate() {
            if is_cut && place + 1 == given {
                text.push_str(style.glyph(" …", " ~"));
            }
            let label = if place == 0 { label } else { "" };
            lines.push(
                Line::new()
                    .painted(Paint::Faint, format!("  {label:<LABEL$}"))
                    .plain(text),
            );
        }
    }
    lines
}

/// Formats the other active findings, with a line for each.
fn others(app: &App, shown: &Verdict, columns: usize, style: Style) -> Vec<Line> {
    let others = app.job.raised().filter(|verdict| verdict.id != shown.id);
    let line = |verdict: &Verdict| {
        let (mark, paint) = say::mark(verdict.severity(), style);
        let costs = verdict.impact.map_or_else(String::new, |impact| {
            format!(" ({})", humanize::impact(verdict.finding.as_str(), impact))
        });
        let who = format!(": {}", say::whom(verdict));
        let head = format!("{mark} {}", verdict.finding);
        let room = columns.saturating_sub(width(&head) + width(&costs));
        Line::new()
            .painted(paint, head)
            .plain(clip(&who, room, style) + &costs)
    };
    others.map(line).collect()
}

/// Limits the lines to `most`. The last one shows the number of the remaining ones, including `untold` that are not in
/// this list.
fn bounded(mut lines: Vec<Line>, most: usize, untold: u64) -> Vec<Line> {
    if lines.len() > most || untold > 0 {
        let kept = lines.len().min(most.saturating_sub(1));
        let more = (lines.len() - kept) as u64 + untold;
        lines.truncate(kept);
        if most > 0 {
            let text = format!("  {} more: n shows the next", say::grouped(more));
            lines.push(Line::new().painted(Paint::Faint, text));
        }
    }
    lines
}
