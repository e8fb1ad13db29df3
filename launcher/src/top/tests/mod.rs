//! Tests the screens of jobs, with data that the aggregator's own code has encoded.

mod world;

use std::path::Path;

use paceline_health::report::{Ending, Reason};
use paceline_health::verdict::{Cause, Finding, Subject};
use ratatui_core::backend::TestBackend;
use ratatui_core::terminal::Terminal;
use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::Value;

use super::app::{App, Link, Page};
use super::client::response::News;
use super::*;
use world::{verdict, world};

const STYLE: Style = Style {
    color: false,
    unicode: true,
    width: 80,
};
const HOSTILE: &str =
    "</script><b>\x1b[31;5m\x1b]0;owned\x07\u{202e}\r\n\t日本\u{301}\u{301}\u{200b}\"'&\u{9b}2J";

/// Returns the screen as text, as a terminal of this size displays it.
fn shown(app: &mut App, columns: u16, rows: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    let drawn = terminal.draw(|frame| {
        let screen = view::screen(app, usize::from(columns), usize::from(rows), STYLE);
        (app.first, app.rows, app.scrolled) = (screen.first, screen.rows, screen.scrolled);
        paper::draw(&screen.lines, STYLE, frame.buffer_mut());
    });
    let buffer = drawn.unwrap().buffer.clone();
    let mut text = String::new();
    for y in 0..rows {
        // Skip the hidden cell that follows a letter of two columns.
        let (mut line, mut x) = (String::new(), 0);
        while x < columns {
            let symbol = buffer[(x, y)].symbol();
            line.push_str(symbol);
            x += paper::width(symbol).max(1) as u16;
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

fn press(app: &mut App, keys: &[KeyCode]) {
    for key in keys {
        app.press(KeyEvent::new(*key, KeyModifiers::NONE));
    }
}

/// Compares a text with a file. With REWRITE=1, writes the file.
fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src/top/golden")
        .join(name);
    if std::env::var_os("REWRITE").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, wanted, "{name}; REWRITE=1 writes it anew");
}

#[test]
fn the_first_screen_answers_who_why_and_what_now() {
    let mut app = world(8).with_slow(5).app();
    golden("80x24.txt", &shown(&mut app, 80, 24));
    golden("40x10.txt", &shown(&mut app, 40, 10));
    golden("132x24.txt", &shown(&mut app, 132, 24));
    let plain = paper::print(&view::plain(&app, 80, 20, STYLE), STYLE);
    golden("once.txt", &plain);
}

#[test]
fn jobs_that_are_not_shown_have_their_line() {
    let mut app = world(8).with_slow(5).app();
    let text =
        "Not your newest job: paceline-b needs a token (paceline top --http-token-file FILE 127.0.0.1:4711).";
    app.aside = Some(choose::Aside {
        is_warning: true,
        text: text.into(),
    });
    let whole = shown(&mut app, 132, 24);
    assert!(whole.contains(&format!("▲ {text}")), "{whole}");
    let narrow = shown(&mut app, 80, 24);
    assert!(
        narrow.contains("▲ Not your newest job: paceline-b needs a token"),
        "{narrow}"
    );
    assert!(narrow.contains("straggler"), "{narrow}");
    let plain = paper::print(&view::plain(&app, 132, 20, STYLE), STYLE);
    assert!(plain.contains(text), "{plain}");
    // If there is room for only three lines, no rank is shown.
    app.aside = None;
    let tiny = shown(&mut app, 40, 3);
    assert!(!tiny.contains("1-0 of"), "{tiny}");
}

#[test]
fn all_is_well_only_as_far_as_was_seen() {
    let mut app = world(8).app();
    golden("calm.txt", &shown(&mut app, 80, 24));
    let mut app = App::default();
    assert!(shown(&mut app, 80, 24).contains("No result yet"));
}

#[test]
fn pages_behind_the_first() {
    let mut app = world(16).with_slow(5).app();
    shown(&mut app, 80, 24);
    press(&mut app, &[KeyCode::Enter]);
    assert_eq!(app.page, Page::Rank(5), "the slowest is the first");
    golden("rank.txt", &shown(&mut app, 80, 30));
    press(&mut app, &[KeyCode::Esc, KeyCode::Char('d')]);
    assert!(shown(&mut app, 80, 24).contains("evidence    SM clock 1657 MHz, peers 1978 MHz"));
    press(&mut app, &[KeyCode::Esc, KeyCode::Char('?')]);
    golden("keys.txt", &shown(&mut app, 80, 24));
    press(&mut app, &[KeyCode::Char('?'), KeyCode::Char('q')]);
    assert!(app.is_over);
}

#[test]
fn keys_choose_ranks_by_place_and_keep_them_by_number() {
    let mut app = world(64).with_slow(5).app();
    shown(&mut app, 80, 24);
    press(&mut app, &[KeyCode::Down, KeyCode::Down, KeyCode::Char('k')]);
    assert_eq!(app.rank(), Some(0), "5, then 0, 1, 2 and so on");
    press(&mut app, &[KeyCode::Char('s')]);
    assert_eq!((app.rank(), app.place()), (Some(0), 0), "now by their numbers");
    press(&mut app, &[KeyCode::Char('G')]);
    let text = shown(&mut app, 80, 24);
    assert!(text.contains("\n>   63") && !text.contains("\n    10 "), "{text}");
    press(&mut app, &[KeyCode::PageUp]);
    let place = app.place();
    assert_eq!(place, 63 - app.rows);
    press(
        &mut app,
        &[
            KeyCode::Char('/'),
            KeyCode::Char('3'),
            KeyCode::Char('q'),
            KeyCode::Backspace,
        ],
    );
    let text = shown(&mut app, 80, 24);
    assert!(text.contains("filter: 3_") && app.order == [3], "{text}");
    press(&mut app, &[KeyCode::Esc, KeyCode::Char('/')]);
    "node7"
        .chars()
        .for_each(|letter| press(&mut app, &[KeyCode::Char(letter)]));
    press(&mut app, &[KeyCode::Enter]);
    assert_eq!(app.order, (56..64).collect::<Vec<u32>>());
    assert!(!app.is_over && !app.is_typing);
    app.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
    assert!(app.is_over);
}

#[test]
fn an_aggregator_that_is_away_and_a_job_that_ended_are_told() {
    let mut app = world(8).with_slow(5).app();
    app.link = Link::Away {
        for_s: 75,
        why: "connection refused".to_owned(),
    };
    let text = shown(&mut app, 80, 24);
    for says in ["NO ANSWER", "for 1 min: connection refused", "rank 5 on node0"] {
        assert!(text.contains(says), "{says}: {text}");
    }
    let mut ended = world(8).with_slow(5);
    ended.end = Some(Ending {
        reason: Reason::Success,
        node: None,
        rank: None,
        code: None,
        kind: None,
        says: "".into(),
        missing: None,
        heard: Vec::new(),
    });
    let mut app = ended.app();
    app.link = Link::Ended(None);
    let text = shown(&mut app, 80, 24);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for says in [
        "ENDED",
        "The job has ended: success.",
        "paceline report /home/ada/paceline-llama",
        "1.26x",
    ] {
        assert!(text.contains(says), "{says}: {text}");
    }
}

/// Names, sentences and evidence contain terminal control sequences, and a megabyte of text each.
#[test]
fn hostile_text_stays_text() {
    let long = HOSTILE.repeat((1 << 20) / HOSTILE.len());
    let mut hostile = world(8).with_slow(5);
    hostile.job = long.clone();
    hostile.node = |node| format!("{node}{HOSTILE}");
    for id in 2..40 {
        let subject = Subject::Node {
            node: format!("0{HOSTILE}").as_str().into(),
        };
        let mut verdict = verdict(id, subject, Finding::NetworkPort, Cause::Network);
        verdict.action = long.as_str().into();
        verdict.evidence[0].what = long.as_str().into();
        hostile.verdicts.push(verdict);
    }
    let mut app = hostile.app();
    for (columns, rows) in [(80, 24), (40, 10), (20, 4), (1, 1), (200, 60)] {
        for key in ['?', '?', 'd', 'n'] {
            let text = shown(&mut app, columns, rows);
            let bad = |letter: char| {
                letter.is_control() && letter != '\n' || "\u{202e}\u{200b}\u{301}".contains(letter)
            };
            assert!(!text.contains(bad), "{columns}x{rows}: {text:?}");
            assert_eq!(text.lines().count(), usize::from(rows));
            let widest = text.lines().map(paper::width).max();
            assert!(widest <= Some(usize::from(columns)), "{columns}x{rows}: {text}");
            press(&mut app, &[KeyCode::Char(key)]);
        }
        press(&mut app, &[KeyCode::Esc]);
    }
    let text = shown(&mut app, 80, 24);
    assert!(text.starts_with("</script><b>␛[31;5m␛]0;ow… · step"), "{text}");
    let plain = paper::print(&view::plain(&app, 80, 20, STYLE), STYLE);
    assert!(
        !plain.contains(|letter: char| letter.is_control() && letter != '\n'),
        "{plain:?}"
    );
    // The JSON contains all of it, up to the maximum length of a sentence.
    let all: Value = serde_json::from_str(&once::json(&app).unwrap()).unwrap();
    assert!(all["job"].as_str().unwrap().chars().count() <= 161);
}

#[test]
fn json_has_every_rank_and_its_version() {
    let mut app = world(16).with_slow(5).app();
    app.sort = Sort::Slowdown;
    let told: Value = serde_json::from_str(&once::json(&app).unwrap()).unwrap();
    assert_eq!(
        (&told["schema_version"], &told["state"], &told["steps"]),
        (&1.into(), &"running".into(), &1234.into())
    );
    let ranks = told["ranks"].as_array().unwrap();
    assert_eq!(
        (ranks.len(), &ranks[0]["rank"], &ranks[0]["verdict"]),
        (16, &5.into(), &1.into())
    );
    assert_eq!(ranks[0]["gpu"]["temperature_c"], 87);
    assert_eq!(ranks[0]["gpu"]["pci"], "00000000:1D:00.0");
    let slowdown = ranks[0]["slowdown_ratio"].as_f64().unwrap();
    assert!((slowdown - 1.26).abs() < 0.01, "{slowdown}");
    assert_eq!(told["verdicts"][0]["finding"], "straggler");
}

/// The same problem on several GPUs of a node is one finding. It is shown only next to the ranks on these GPUs.
#[test]
fn hot_gpus_of_a_node_are_one_finding() {
    let mut job = world(16);
    for rank in 8..13 {
        let subject = Subject::Gpu {
            gpu_uuid: world::gpu(rank),
            node: "node1".into(),
        };
        let id = u64::from(rank);
        job.verdicts
            .push(verdict(id, subject, Finding::GpuThrottled, Cause::Thermal));
    }
    let mut app = job.app();
    let text = shown(&mut app, 80, 24);
    assert!(text.contains("gpu-throttled: 5 GPUs on node1"), "{text}");
    let told: Value = serde_json::from_str(&once::json(&app).unwrap()).unwrap();
    assert_eq!(told["verdicts"].as_array().unwrap().len(), 1);
    assert_eq!(
        told["verdicts"][0]["subject"]["gpus"].as_array().unwrap().len(),
        5
    );
    let ranks = told["ranks"].as_array().unwrap().iter();
    let found = ranks
        .filter(|rank| rank["verdict"] == 8)
        .map(|rank| rank["rank"].as_u64().unwrap());
    let mut found: Vec<u64> = found.collect();
    found.sort_unstable();
    assert_eq!(found, [8, 9, 10, 11, 12]);
}

/// Only the ranks on the screen are formatted, so sixteen thousand ranks take no longer than eight.
#[test]
fn a_large_job_fits() {
    let mut app = world(16_384).with_slow(9_999).app();
    let text = shown(&mut app, 80, 24);
    assert!(
        text.contains("rank 9999 on node1249") && text.contains("of 16,384"),
        "{text}"
    );
    press(&mut app, &[KeyCode::Char('G')]);
    assert!(shown(&mut app, 80, 24).contains("> 16383"));
}

#[test]
fn an_answer_of_another_version_is_told_from_nonsense() {
    let problem = News::read(r#"{"v":2,"epoch":"a","serial":1}"#).unwrap_err();
    assert!(problem.contains("version 2"), "{problem}");
    assert!(News::read("<html>").unwrap_err().contains("invalid"));
    // Additional fields are ignored.
    let news = News::read(
        r#"{"v":1,"epoch":"a","serial":1,"more":[1],"steps":[[7,0,"train",1,2,3,4,null,8,1,"","",true,9]]}"#,
    );
    assert_eq!(news.unwrap().last_step().unwrap().step, 7);
}
