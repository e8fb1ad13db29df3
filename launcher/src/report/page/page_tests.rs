use paceline_health::id::Rank;
use paceline_health::remedy::Remedies;
use paceline_health::report::history::{Column, History};
use paceline_health::report::step_snapshot::LEVEL;
use paceline_health::report::{Ending, Gap, Heard, Installed, NodeExit, Part, PartTimes, Reason};
use paceline_health::verdict::{Cause, Finding, State, Subject};

use super::*;
use crate::html::tests::assert_balanced;
use crate::report::samples::{piece, rank, report, times, verdict};

fn made(report: &Report) -> String {
    let page = page(report, &Policy::default());
    assert_balanced(&page);
    page
}

/// Returns all text of a page without markup, in order.
fn words(page: &str) -> String {
    let body = page.split("</head>").nth(1).unwrap();
    let mut text = String::new();
    for piece in body.split('<') {
        text += piece.split_once('>').map_or(piece, |(_, after)| after);
        text.push(' ');
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn column(step: u64, cells: Vec<u8>) -> Column {
    Column {
        step,
        steps: 1,
        at_s: step as f64,
        p50_s: Some(0.1),
        max_s: 0.12,
        phases_s: Some([0.01, 0.06, 0.02, 0.01, 0.0]),
        cells,
        ..Column::default()
    }
}

fn slow() -> Report {
    let mut slow = verdict(1, Finding::Straggler, rank(5), Cause::Thermal);
    slow.slowdown_ratio = Some(1.25);
    slow.evidence = vec![
        piece("self_time_s", 0.125, 0.1),
        piece("sm_clock_mhz", 1485.0, 1980.0),
    ];
    let mut found = report(vec![slow]);
    let step = PartTimes {
        part: Part::Step,
        samples: 6400,
        sum_s: 640.0,
        p50_s: 0.1,
        p90_s: 0.11,
        p99_s: 0.13,
        max_s: 0.5,
    };
    found.times.parts = vec![
        step,
        PartTimes {
            part: Part::Wait,
            sum_s: 64.0,
            ..step
        },
    ];
    found.times.ranks = (0..8)
        .map(|number| times(number, 0.08 + f64::from(number) / 1000.0))
        .collect();
    found.history = Some(History {
        ranks_a_row: 1,
        is_self: true,
        columns: (1..=20)
            .map(|step| column(step, vec![LEVEL, LEVEL, 0, LEVEL, LEVEL, 142, LEVEL, LEVEL]))
            .collect(),
    });
    found
}

#[test]
fn the_answer_comes_first_then_cost_then_pictures_then_details() {
    let page = made(&slow());
    let order = [
        "CRITICAL straggler: rank 5".replace("CRITICAL", "WARNING"),
        "1.25x the self-time of its peers".to_owned(),
        "SM clock 1485 MHz, peers 1980 MHz".to_owned(),
        "8.0 % of every step".to_owned(),
        "Check cooling and airflow".to_owned(),
        "Cost".to_owned(),
        "Ranks by steps".to_owned(),
        "Step time".to_owned(),
        "Time per phase".to_owned(),
        "What limits its speed".to_owned(),
        "Timeline".to_owned(),
        "Coverage".to_owned(),
        "Preflight".to_owned(),
    ];
    let text = words(&page);
    let mut from = 0;
    for part in order {
        let at = text[from..]
            .find(&part)
            .unwrap_or_else(|| panic!("{part} behind {from}: {text}"));
        from += at;
    }
    assert!(page.contains("data:image/png;base64,iVBORw0KGgo"), "the heat map");
    assert!(text.contains("Scaling efficiency: 90 % of a step"), "{text}");
}

#[test]
fn it_needs_nothing_from_outside_and_runs_nothing() {
    let page = made(&slow());
    assert!(page.contains("default-src 'none'"));
    // A link to the runbook is allowed, because it loads nothing. The hatch of warm-ups is in the page itself.
    let runbook = "href=\"https://github.com/paceline/paceline/blob/main/docs/findings.md#straggler\"";
    assert!(page.contains(runbook) && page.contains("<code>paceline explain straggler</code>"));
    let page = page.replace(runbook, "").replace("url(#warm)", "");
    for outside in [
        "<script",
        "http://",
        "https://",
        "@import",
        "url(",
        "<iframe",
        "onload",
        "javascript:",
    ] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn what_is_missing_is_not_measured_and_never_zero() {
    let mut empty = report(Vec::new());
    empty.median_step_s = None;
    empty.coverage.ranks_seen = 0;
    let page = made(&empty);
    let text = words(&page);
    for part in [
        "No rank was observed: nothing is known about this job",
        "not measured goodput",
        "no price set",
        "Not measured: no step of this job was compared",
        "Scaling efficiency: not measured",
        "GPUs: not measured",
        "Not measured: no GPU was read",
        "Not measured: none was run before this job",
        "no end was recorded",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(
        !text.contains(" 0 %") && !text.contains("NaN") && !text.contains("inf"),
        "{text}"
    );
}

#[test]
fn of_many_findings_all_are_counted() {
    let verdicts = (1..=200).map(|id| verdict(id, Finding::Straggler, rank(id as u32), Cause::Unknown));
    let text = words(&made(&report(verdicts.collect())));
    assert!(
        text.contains("And 197 findings more") && text.contains("and 137 more in report.json"),
        "{text}"
    );
}

#[test]
fn tainted_steps_name_the_checkpoint_to_go_back_to() {
    let mut suspect = verdict(
        1,
        Finding::ResultsSuspect,
        Subject::Job { job: "j".into() },
        Cause::Unknown,
    );
    suspect.since_step = Some(301);
    suspect.evidence = vec![piece("last_clean_checkpoint_step", 300.0, 0.0)];
    let text = words(&made(&report(vec![suspect])));
    assert!(
        text.contains("Suspect from step 301 on ; the last clean checkpoint is of step 300"),
        "{text}"
    );
}

/// Names, sentences, versions and exceptions are untrusted text from the job's nodes.
#[test]
fn hostile_text_stays_text() {
    let hostile = format!(
        "</p><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[2J\u{202e}\"'&\n{}",
        "A".repeat(1 << 20)
    );
    let says = hostile.as_str();
    let mut subject = verdict(
        1,
        Finding::Straggler,
        Subject::Rank {
            rank: Rank(1),
            node: says.into(),
            gpu_uuid: Some(says.into()),
        },
        Cause::Unknown,
    );
    subject.action = says.into();
    subject.evidence = vec![piece(&hostile, 1.0, 2.0)];
    let mut over = subject.clone();
    (over.id, over.state, over.cleared_s) = (2, State::Cleared, Some(5.0));
    let mut found = slow();
    found.job = says.into();
    found.verdicts = vec![subject, over];
    found.cost.by_cause = [(says.into(), 1.0)].into();
    found.cost.gpu_hours = 2.0;
    found.coverage.notes = vec![says.into()];
    found.coverage.gaps = vec![Gap {
        node: says.into(),
        from_s: 1.0,
        to_s: None,
        why: says.into(),
    }];
    found.exits = vec![NodeExit {
        node: says.into(),
        code: 1,
    }];
    found.versions = [(
        says.into(),
        vec![Installed {
            version: says.into(),
            nodes: 1,
        }],
    )]
    .into();
    found.end = Some(Ending {
        reason: Reason::Error,
        node: Some(says.into()),
        says: says.into(),
        heard: vec![Heard {
            node: says.into(),
            rank: None,
            kind: paceline_health::event::TroubleKind::PeerLost,
            says: says.into(),
        }],
        ..Ending::success()
    });
    found.began_unix_ms = Some(1);
    found.remedies = serde_json::from_value::<Remedies>(serde_json::json!({
        "counts": [{ "response": "signal", "outcome": "act", "count": 1 }],
        "latest": [{ "unix_ms": 2, "finding": "straggler", "subject": { "kind": "node", "node": hostile },
                     "response": "signal", "outcome": "act", "mark": hostile, "course": [hostile] }],
    }))
    .unwrap();
    let page = made(&found);
    assert!(!page.contains("<script") && !page.contains("<img"));
    assert!(!page.contains('\x1b') && !page.contains('\u{202e}'));
    assert!(page.contains("&lt;script&gt;alert(1)"));
    assert!(page.len() < 200_000, "{} bytes", page.len());
}

#[test]
fn a_report_of_sixteen_thousand_ranks_is_a_small_page() {
    let mut found = slow();
    found.world_size = 16_384;
    found.times.ranks = (0..16_384).map(|rank| times(rank, 0.1)).collect();
    let columns =
        (1..=191).map(|step| column(step * 50, (0..128).map(|row| LEVEL + (row % 7) as u8).collect()));
    found.history = Some(History {
        ranks_a_row: 128,
        is_self: true,
        columns: columns.collect(),
    });
    let page = made(&found);
    assert!(page.len() < 120_000, "{} bytes", page.len());
}

/// Uses a history that no version of Paceline writes, as in a modified report.
#[test]
fn a_damaged_history_is_drawn_somehow() {
    for columns in [
        Vec::new(),
        vec![Column::default()],
        vec![
            Column {
                steps: u64::MAX,
                apart: u64::MAX,
                step: 0,
                max_s: f64::NAN,
                p50_s: Some(f64::INFINITY),
                phases_s: Some([f64::NAN; 5]),
                ..Column::default()
            };
            3
        ],
    ] {
        let mut found = slow();
        found.history = Some(History {
            ranks_a_row: 0,
            is_self: false,
            columns,
        });
        assert!(!made(&found).contains("NaN"));
    }
}
