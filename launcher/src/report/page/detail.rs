//! Renders the data behind the answer: outlier ranks, coverage, versions, and the preflight.

use paceline_health::report::{Part, RankTimes, Report};
use paceline_health::text::humanize::{count, percent, span};
use paceline_health::verdict::{Finding, Verdict};

use super::{Head, table};
use crate::html::Html;
use crate::preflight::show;
use crate::report::block::coverage_words;

/// Maximum number of lines for ranks, gaps, notes, versions and the like.
const RANKS: usize = 12;
const GAPS: usize = 12;
const NOTES: usize = 16;
const VERSIONS: usize = 32;
const EXITS: usize = 12;
const PREFLIGHT: usize = 32;

pub(super) fn draw(report: &Report) -> Html {
    let mut html = Html::default();
    html.tag("<section>")
        .part(suspect(report))
        .part(ranks(report))
        .part(seen(report))
        .part(versions(report));
    html.part(exits(report)).tag("</section>");
    html
}

/// Returns true if the evidence has a checkpoint to return to, or says that there is none.
fn names_checkpoint(verdict: &Verdict) -> bool {
    let names = ["last_clean_checkpoint_step", "no_clean_checkpoint"];
    verdict.evidence.iter().any(|piece| names.contains(&&*piece.what))
}

/// Renders the steps that may be wrong, and the checkpoint to return to.
fn suspect(report: &Report) -> Html {
    let mut html = Html::default();
    html.tag("<h2>Results</h2>");
    let tainted: Vec<&Verdict> = report
        .verdicts
        .iter()
        .filter(|verdict| verdict.finding == Finding::ResultsSuspect || names_checkpoint(verdict))
        .collect();
    for verdict in &tainted {
        let from = verdict
            .since_step
            .map_or("an unknown step".to_owned(), |step| format!("step {step}"));
        let clean = verdict
            .evidence
            .iter()
            .find(|piece| &*piece.what == "last_clean_checkpoint_step");
        html.tag("<p><b class=\"critical\">Suspect from ")
            .text(from)
            .tag(" on</b>; ");
        match clean {
            Some(piece) => html.element("the last clean checkpoint is of step ", piece.value, ". "),
            None => html.tag("no older checkpoint of this run is known. "),
        };
        html.text(&verdict.action).tag("</p>");
    }
    if tainted.is_empty() {
        let has_gpus = !report.gpu_means.is_empty();
        let is_wrong = |verdict: &Verdict| verdict.finding == Finding::EccUncorrectable;
        html.tag(if report.verdicts.iter().any(is_wrong) {
            "<p><b class=\"critical\">A GPU counted an error that it could not correct</b>; the ranks that use \
             it are not known, nor from which step on results may be wrong.</p>"
        } else if has_gpus {
            "<p>No step is suspect: no GPU counted an error that it could not correct.</p>"
        } else {
            "<p class=\"none\">Not measured: no GPU was read, so memory errors are unknown.</p>"
        });
    }
    html
}

/// Renders the ranks with the longest self-time.
fn ranks(report: &Report) -> Html {
    let mut html = Html::default();
    html.tag("<h2>Slowest ranks</h2>");
    let has_own = report
        .times
        .ranks
        .iter()
        .any(|rank| rank.parts.contains_key(&Part::Own));
    let part = if has_own { Part::Own } else { Part::Step };
    let of = |rank: &RankTimes| rank.parts.get(&part).map(|usual| usual.p50_s);
    let mut ranks: Vec<(f64, &RankTimes)> = report
        .times
        .ranks
        .iter()
        .filter_map(|rank| Some((of(rank)?, rank)))
        .collect();
    ranks.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.rank.cmp(&b.1.rank)));
    let Some((median, _)) = ranks.get(ranks.len() / 2).copied() else {
        html.tag("<p class=\"none\">Not measured: no rank reported steps.</p>");
        return html;
    };
    let row = |(own, rank): &(f64, &RankTimes)| {
        let p99 = rank
            .parts
            .get(&part)
            .map_or(String::new(), |usual| span(usual.p99_s));
        let more = if median > 0.0 {
            percent(own / median - 1.0)
        } else {
            String::new()
        };
        vec![
            format!("rank {}", rank.rank.0),
            span(*own),
            more,
            p99,
            rank.steps.to_string(),
        ]
    };
    let heads = [
        Head::Words("rank"),
        Head::Number(if has_own { "self-time" } else { "step" }),
        Head::Number("beyond the median rank"),
        Head::Number("p99"),
        Head::Number("steps"),
    ];
    html.part(table(&heads, ranks.iter().take(RANKS).map(row)));
    if ranks.len() > RANKS {
        html.element(
            "<p class=\"faint\">",
            format_args!("{} ranks in report.json", ranks.len()),
            "</p>",
        );
    }
    html
}

/// Renders the coverage.
fn seen(report: &Report) -> Html {
    let seen = &report.coverage;
    let mut html = Html::default();
    html.element("<h2>Coverage</h2><p>", coverage_words(seen), ".</p>");
    let signals: Vec<String> = seen.signals.iter().map(|signal| format!("{signal:?}")).collect();
    html.element(
        "<p class=\"faint\">Signals: ",
        if signals.is_empty() {
            "none".to_owned()
        } else {
            signals.join(", ")
        },
        " (S0 wall step time, S1 NCCL plugin, S2 hook in the trainer, S3 GPU, S4 host).</p>",
    );
    for gap in seen.gaps.iter().take(GAPS) {
        let to = gap.to_s.map_or("the end".to_owned(), span);
        let text = format!(
            "{} not watched from {} to {to}: {}",
            gap.node,
            span(gap.from_s),
            gap.why
        );
        html.element("<p>", text, "</p>");
    }
    for note in seen.notes.iter().take(NOTES) {
        html.element("<p>", note, "</p>");
    }
    let more = seen.gaps.len().saturating_sub(GAPS) + seen.notes.len().saturating_sub(NOTES);
    if more > 0 {
        html.element(
            "<p class=\"faint\">",
            format_args!("and {more} more in report.json"),
            "</p>",
        );
    }
    html
}

fn versions(report: &Report) -> Html {
    let mut html = Html::default();
    html.tag("<h2>Versions</h2>");
    if report.versions.is_empty() {
        html.tag("<p class=\"none\">Not reported: no sidecar connected.</p>");
        return html;
    }
    let row = |(name, all): (&std::sync::Arc<str>, &Vec<paceline_health::report::Installed>)| {
        let told: Vec<String> = all
            .iter()
            .map(|installed| match all.len() {
                1 => installed.version.to_string(),
                _ => format!(
                    "{} ({})",
                    installed.version,
                    count(installed.nodes.into(), "node")
                ),
            })
            .collect();
        vec![name.to_string(), told.join(", ")]
    };
    let heads = [Head::Words("what"), Head::Words("version")];
    html.part(table(&heads, report.versions.iter().take(VERSIONS).map(row)));
    html
}

fn exits(report: &Report) -> Html {
    let mut html = Html::default();
    let bad: Vec<String> = report
        .exits
        .iter()
        .filter(|exit| exit.code != 0)
        .map(|exit| format!("{} with {}", exit.node, exit.code))
        .collect();
    if !bad.is_empty() {
        let more = bad.len().saturating_sub(EXITS);
        let mut text = bad.into_iter().take(EXITS).collect::<Vec<_>>().join(", ");
        if more > 0 {
            text += &format!(" and {more} more");
        }
        html.element("<p>Commands ended: ", text, ".</p>");
    }
    html
}

/// Renders the preflight's results.
pub(super) fn preflight(report: &Report) -> Html {
    let mut html = Html::default();
    html.tag("<section><h2>Preflight</h2>");
    let Some(section) = &report.preflight else {
        html.tag("<p class=\"none\">Not measured: none was run before this job. <code>paceline run --preflight quick</code> ")
            .tag("measures every node, pair and all together first.</p></section>\n");
        return html;
    };
    if section.told.mode.is_empty() {
        html.tag("<p>It failed: the job started without it.</p>");
    } else {
        let (_, outcome) = show::outcome(section.told.outcome);
        html.tag("<p>");
        if section.simulated {
            html.tag("<b>SIMULATED</b>, ");
        }
        let told = &section.told;
        html.text(format_args!(
            "{}, {}, {}, {}, {}: {outcome}",
            told.mode,
            count(told.nodes.into(), "node"),
            count(told.gpus.into(), "GPU"),
            span(told.seconds),
            count(told.comparisons, "comparison")
        ))
        .tag("</p>");
        let value = |(metric, value): (&paceline_health::preflight::Metric, &f64)| {
            let (name, unit, scale) = show::unit(*metric);
            vec![name.to_owned(), format!("{} {unit}", show::number(value * scale))]
        };
        if !told.values.is_empty() {
            let heads = [Head::Words("all nodes together"), Head::Number("reached")];
            html.part(table(&heads, told.values.iter().map(value)));
        }
    }
    for out in section.told.left_out.iter().take(PREFLIGHT) {
        html.element(
            "<p>",
            format_args!("{} was excluded: {}", out.node, out.why),
            "</p>",
        );
    }
    for noted in section.findings.iter().take(PREFLIGHT) {
        html.element("<p><b>", noted.severity.name(), "</b> ")
            .text(show::sentence(noted))
            .tag(" ")
            .text(&noted.advice)
            .tag("</p>");
    }
    for problem in section.problems.iter().take(PREFLIGHT) {
        let node = problem
            .node
            .as_ref()
            .map_or(String::new(), |node| format!("{node}: "));
        html.element(
            "<p>",
            format_args!("{node}{} ({})", problem.what, problem.phase),
            "</p>",
        );
    }
    html.part(nodes(section)).tag("</section>\n");
    html
}

fn nodes(section: &paceline_health::preflight::Section) -> Html {
    let metrics = show::metrics(section.rows.values());
    let mut html = Html::default();
    if metrics.is_empty() || section.rows.len() < 2 {
        return html;
    }
    html.tag("<div class=\"wide\" tabindex=\"0\"><table><tr><th>node</th>");
    for metric in &metrics {
        let (head, unit, _) = show::unit(*metric);
        html.element("<th class=\"n\">", format_args!("{head} ({unit})"), "</th>");
    }
    html.tag("</tr>\n");
    for (node, row) in section.rows.iter().take(PREFLIGHT) {
        html.element(
            "<tr><td>",
            node,
            if row.there { "</td>" } else { " (absent)</td>" },
        );
        for metric in &metrics {
            let (_, _, scale) = show::unit(*metric);
            let value = row
                .values
                .get(metric)
                .map_or("-".to_owned(), |value| show::number(value * scale));
            let is_bad = show::severity(&section.findings, node, *metric).is_some();
            html.tag(if is_bad {
                "<td class=\"n\"><b class=\"warning\">▲ "
            } else {
                "<td class=\"n\"><b class=\"plain\">"
            });
            html.text(value).tag("</b></td>");
        }
        html.tag("</tr>\n");
    }
    html.tag("</table></div>");
    html
}
