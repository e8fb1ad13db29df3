//! Formats the detail pages: a rank, a finding, and the keys.

use paceline_health::text::humanize::{percent, span};

use super::answer::headline;
use super::paper::{Line, wrap};
use super::say;
use crate::output::{Paint, Style};
use crate::top::app::{App, Page};
use crate::top::client::response::Verdict;
use crate::top::job::RankNow;

/// Width of a label, including the spaces after it.
const LABEL: usize = 12;

const KEYS: [(&str, &str); 13] = [
    (
        "up, down",
        "the rank before, the next (also k and j; PgUp, PgDn, g, G)",
    ),
    ("Enter", "details of the rank; Esc: back"),
    ("d", "the finding in full: what it means, evidence, advice"),
    ("n, p", "the next finding, the one before; Esc: the worst"),
    (
        "/",
        "filter: a rank number, part of a node or GPU name, a finding",
    ),
    ("s, S", "the next order of ranks (also F6); the other way round"),
    ("space", "pause and resume"),
    ("?", "these keys (also F1)"),
    ("q", "quit (also F10, ctrl-C)"),
    (
        "SLOWER",
        "self-time over that of its peers, median of the last 16 steps",
    ),
    (
        "WHERE",
        "the last step in tenths: D data, C compute, W wait for others, O optimizer, K checkpoint",
    ),
    (
        "ECC",
        "memory errors since the start of monitoring: U uncorrected, c corrected",
    ),
    (
        "signs",
        "* critical, ! warning, - info (or a dot, a triangle, a small dot); x: its process has ended; a dash: \
         unknown",
    ),
];

/// Returns the lines of a page.
pub(super) fn lines(app: &App, page: Page, columns: usize, style: Style) -> Vec<Line> {
    match page {
        Page::Rank(rank) => one(app, &app.job.rank(rank), columns, style),
        Page::Finding => {
            let found = app.verdict().into_iter();
            found
                .flat_map(|verdict| finding(app, verdict, columns, style))
                .collect()
        }
        Page::Keys => {
            let keys = KEYS.iter().flat_map(|(key, says)| labelled(key, says, columns));
            std::iter::once(title("Keys and signs")).chain(keys).collect()
        }
        Page::Ranks => Vec::new(),
    }
}

fn title(text: &str) -> Line {
    Line::new().painted(Paint::Strong, text)
}

/// Formats a label with a wrapped text.
fn labelled(label: &str, text: &str, columns: usize) -> Vec<Line> {
    let mut label = format!("{label:<LABEL$}");
    let texts = wrap(text, columns.saturating_sub(LABEL + 2)).into_iter();
    texts
        .map(|text| {
            let own = std::mem::replace(&mut label, " ".repeat(LABEL));
            Line::new().painted(Paint::Faint, format!("  {own}")).plain(text)
        })
        .collect()
}

fn one(app: &App, now: &RankNow<'_>, columns: usize, style: Style) -> Vec<Line> {
    let node = now.node.map_or_else(String::new, |node| format!(" on {node}"));
    let mut lines = vec![title(&format!("Rank {}{node}", now.rank))];
    let mut fact = |label: &str, text: String| lines.extend(labelled(label, &text, columns));
    if !now.is_up {
        fact("process", "has ended, or was never observed".to_owned());
    }
    let by = if app.job.step.is_none_or(|step| step.is_self) {
        "self-time"
    } else {
        "step time"
    };
    fact(
        "slower",
        match now.slowdown() {
            Some(ratio) => format!("{ratio:.2}x the {by} of its peers, median of the last 16 steps"),
            None => "no data for the last step: unknown, which is not healthy".to_owned(),
        },
    );
    let standing = &now.standing;
    if let Some((step, behind)) = now.step.zip(standing.behind) {
        let behind = if behind == 0 {
            "the newest".to_owned()
        } else {
            format!("{behind} behind the newest")
        };
        fact("step", format!("{} ({behind})", say::grouped(step)));
    }
    if let Some(took_s) = standing.took_s {
        fact("took", span(took_s));
    }
    if let Some([data, compute, wait, optimizer, checkpoint]) = standing.shares {
        let part = |name: &str, share: f64| format!("{name} {}", percent(share));
        let parts = [
            part("data", data),
            part("compute", compute),
            part("waits for others", wait),
            part("optimizer", optimizer),
            part("checkpoint", checkpoint),
        ];
        fact("where", parts.join(", "));
    }
    lines.extend(gpu(now, columns));
    let concerns = |verdict: &&Verdict| {
        let subject = &verdict.subject;
        subject.rank == Some(now.rank)
            || subject.rank.is_none() && (subject.node.is_some() && subject.node.as_ref() == now.node)
    };
    let shown = now.verdict.into_iter();
    let others = app.job.raised().filter(concerns);
    let mut told = Vec::new();
    for verdict in shown.chain(others) {
        if !told.contains(&verdict.id) {
            told.push(verdict.id);
            lines.push(Line::new());
            lines.extend(finding(app, verdict, columns, style));
        }
    }
    if told.is_empty() {
        lines.push(Line::new());
        lines.push(Line::of(
            "No active finding about this rank, its GPU or its node.",
        ));
    }
    lines
}

fn gpu(now: &RankNow<'_>, columns: usize) -> Vec<Line> {
    let Some(gpu) = &now.gpu else {
        return labelled("GPU", "none is known", columns);
    };
    let read = gpu.now;
    let or_not = |value: Option<String>| value.unwrap_or_else(|| "not read".to_owned());
    let of = |value: Option<u16>, most: Option<u16>, unit: &str| {
        or_not(value.map(|value| match most {
            Some(most) => format!("{value} of {most} {unit}"),
            None => format!("{value} {unit}"),
        }))
    };
    let names = [Some(gpu.uuid), gpu.bus, gpu.model].into_iter().flatten();
    let names: Vec<&str> = names.map(|name| name.as_str()).collect();
    let heat = read.temperature_c.map(|celsius| match read.margin_c {
        Some(margin) => format!("{celsius} C, {margin} C below its slowdown"),
        None => format!("{celsius} C"),
    });
    let errors = read.ecc_uncorrected.or(read.ecc_corrected).map(|_| {
        let number = |count: Option<u16>| count.map_or_else(|| "?".to_owned(), |count| count.to_string());
        format!(
            "{} uncorrected, {} corrected since the start of monitoring",
            number(read.ecc_uncorrected),
            number(read.ecc_corrected)
        )
    });
    let mut facts = vec![
        ("GPU", names.join(", ")),
        ("heat", or_not(heat)),
        ("SM clock", of(read.sm_clock_mhz, read.sm_clock_max_mhz, "MHz")),
        ("power", of(read.power_w, read.power_limit_w, "W")),
        ("in use", or_not(read.utilization_ratio.map(percent))),
        ("ECC", or_not(errors)),
    ];
    let troubles: Vec<&str> = read.troubles().collect();
    if !troubles.is_empty() {
        facts.push(("trouble", troubles.join(", ")));
    }
    let lines = facts
        .iter()
        .flat_map(|(label, text)| labelled(label, text, columns));
    lines.collect()
}

fn finding(app: &App, verdict: &Verdict, columns: usize, style: Style) -> Vec<Line> {
    let mut lines = vec![headline(app, verdict, columns, style)];
    let mut fact = |label: &str, text: &str| lines.extend(labelled(label, text, columns));
    fact("who", verdict.whom.as_str());
    fact("means", &format!("{}. {}", verdict.title, verdict.means));
    fact("why", &say::why(verdict));
    if let Some(report) = &app.job.report {
        fact("since", &say::since(verdict, report));
    }
    fact("cost", &say::costs(verdict, &app.job));
    fact("do", verdict.action.as_str());
    let proof = say::proof(verdict);
    for (place, phrase) in proof.iter().enumerate() {
        fact(if place == 0 { "evidence" } else { "" }, phrase);
    }
    for note in say::notes(verdict) {
        fact("note", &note);
    }
    lines
}
