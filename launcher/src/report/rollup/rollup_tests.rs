use std::fs;

use paceline_health::report::Cost;
use paceline_health::verdict::Cause;

use super::*;
use crate::html::tests::assert_balanced;
use crate::report::samples::{rank, report, verdict};

const STYLE: Style = Style {
    color: false,
    unicode: false,
    width: 90,
};

fn run(job: &str, lost: &[(&str, f64)], verdicts: Vec<Verdict>) -> Report {
    let mut found = report(verdicts);
    found.job = job.into();
    let all: f64 = lost.iter().map(|(_, lost)| lost).sum();
    found.cost = Cost {
        gpu_hours: 100.0,
        lost_gpu_hours: all,
        by_cause: lost
            .iter()
            .map(|(cause, lost)| ((*cause).into(), *lost))
            .collect(),
        goodput_ratio: Some(1.0 - all / 100.0),
        gpu_hour_price: Some(2.5),
        lost_cost: Some(all * 2.5),
        ..Cost::default()
    };
    found
}

fn on(node: &str) -> Subject {
    Subject::Node { node: node.into() }
}

fn three() -> Rollup {
    let mut rollup = Rollup {
        below: "runs".to_owned(),
        since_s: 7 * 86_400,
        ..Rollup::default()
    };
    let slow = |node| verdict(1, Finding::StragglerNode, on(node), Cause::Power);
    let mut info = verdict(9, Finding::NetworkPort, on("n9"), Cause::Unknown);
    info.severity = Severity::Info;
    let link = Subject::Link {
        node: "n7".into(),
        peer: Some("n8".into()),
    };
    let link = verdict(3, Finding::SlowLink, link, Cause::Network);
    let one = run(
        "one",
        &[("power", 8.0), ("checkpoint", 2.0)],
        vec![slow("n3"), info],
    );
    let mut fault = verdict(2, Finding::GpuFault, on("n3"), Cause::Unknown);
    fault.severity = Severity::Critical;
    let two = run(
        "two",
        &[("power", 4.0)],
        vec![
            slow("n3"),
            fault,
            link,
            verdict(4, Finding::Straggler, rank(1), Cause::Thermal),
        ],
    );
    let mut three = run("three\x1b[31m", &[], Vec::new());
    three.cost.lost_cost = None;
    for (place, report, at) in [
        ("runs/b/report.json", &two, 2_000),
        ("runs/a/report.json", &one, 1_000),
        ("runs/c/report.json", &three, 3_000),
    ] {
        rollup.add(Path::new(place), report, at, false);
    }
    rollup
        .damaged
        .push("runs/d/report.json:1:1: EOF while parsing an object".to_owned());
    rollup.settle();
    rollup
}

#[test]
fn those_that_have_not_ended_are_named() {
    let mut rollup = three();
    for place in 0..4 {
        let job = run(&format!("now-{place}\x1b[31m"), &[], Vec::new());
        rollup.add(Path::new("runs/e/report.json"), &job, 4_000 + place, true);
    }
    let text = show::text(&rollup, STYLE);
    let wanted = "still running, counted up to now: 4 runs (now-0␛[31m, now-1␛[31m, now-2␛[31m and 1 more)\n";
    assert!(text.contains(wanted), "{text}");
}

#[test]
fn the_text_is_this() {
    let wanted = "\
3 runs in the last 7 days below runs: 14.00 GPU-hours of 300.00 GPU-hours lost (4.7 %),
worth 35.00 in the 2 runs that had a price
goodput 95 %
1 report could not be read and is not included

lost to                                lost   share      money   runs
power                       12.00 GPU-hours    86 %      30.00      2
checkpoint                   2.00 GPU-hours    14 %       5.00      1

node                     findings   runs               lost      money  what
n3                              3      2     6.00 GPU-hours      15.00  straggler-node x2, gpu-fault
n1                              1      1     2.00 GPU-hours       5.00  straggler
";
    let text = show::text(&three(), STYLE);
    assert_eq!(text, wanted, "{text}");
}

#[test]
fn where_there_is_no_gpu_hours_are_of_ranks() {
    let mut rollup = Rollup::default();
    let mut one = run("one", &[("checkpoint", 2.0)], Vec::new());
    one.coverage.signals.clear();
    rollup.add(Path::new("runs/a/report.json"), &one, 1_000, false);
    rollup.settle();
    let text = show::text(&rollup, STYLE);
    assert!(text.contains("2.00 rank-hours of 100.00 rank-hours"), "{text}");
    assert!(!text.contains("GPU"), "{text}");
}

#[test]
fn the_page_holds_the_runs_as_well() {
    let page = show::page(&three());
    assert_balanced(&page);
    for part in [
        "three␛[31m",
        "1970-01-01 00:00",
        "straggler-node x2, gpu-fault",
        "runs/d/report.json:1:1",
        "gpu-fault of node n3",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains('\x1b'));
    let at = |job: &str| page.find(job).unwrap();
    assert!(
        at(">three") < at(">two") && at(">two") < at(">one"),
        "the latest first"
    );
}

#[test]
fn nothing_found_is_no_good_week() {
    let rollup = Rollup {
        below: "runs".to_owned(),
        since_s: 3600,
        ..Rollup::default()
    };
    assert_eq!(
        show::text(&rollup, STYLE),
        "No report of a run that ended in the last 1 hour below runs.\n"
    );
    assert_balanced(&show::page(&rollup));
}

#[test]
fn spans_are_a_number_and_a_unit() {
    for (text, seconds) in [
        ("7d", 604_800),
        ("12h", 43_200),
        ("90m", 5_400),
        ("2w", 1_209_600),
        ("1s", 1),
    ] {
        assert_eq!(span(text), Ok(Duration::from_secs(seconds)), "{text}");
    }
    for text in [
        "",
        "d",
        "7",
        "0d",
        "-1d",
        "7D",
        "7é",
        "99999999999999999999w",
        "18446744073709551615w",
    ] {
        assert!(span(text).is_err(), "{text}");
    }
}

#[test]
fn reports_are_found_below_and_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| {
        let dir = folder.path().join(name);
        fs::create_dir_all(&dir).unwrap();
        dir.join(crate::report::FILE)
    };
    let mut own = run("own", &[], Vec::new());
    own.began_unix_ms = Some(5_000);
    own.duration_s = 2.5;
    fs::write(at("user/paceline-own"), serde_json::to_string(&own).unwrap()).unwrap();
    // This marks a run in progress: the aggregator updates the file regularly while it runs.
    fs::write(at("user/paceline-own").with_file_name("journal.owner"), "{}").unwrap();
    fs::write(at("broken"), "{\"schema_version\":1,").unwrap();
    fs::write(at("other"), "{\"accuracy\":0.9}").unwrap();
    fs::write(at("newer"), "{\"schema_version\":99}").unwrap();
    fs::write(at(".hidden"), "{").unwrap();
    fs::write(at("1/2/3/4/5"), "{").unwrap();
    std::os::unix::fs::symlink(folder.path(), folder.path().join("loop")).unwrap();
    let found = find::reports(folder.path()).unwrap();
    let names: Vec<&Path> = found
        .iter()
        .map(|path| path.strip_prefix(folder.path()).unwrap().parent().unwrap())
        .collect();
    assert_eq!(
        names,
        ["broken", "newer", "other", "user/paceline-own"].map(Path::new)
    );
    let kinds = found.iter().map(|path| match find::read(path) {
        Seen::Report {
            report,
            until_unix_ms,
            running,
        } => {
            assert_eq!((&*report, until_unix_ms, running), (&own, 7_500, true));
            "report"
        }
        Seen::Foreign => "foreign",
        Seen::Damaged(why) => {
            assert!(why.starts_with(&path.display().to_string()), "{why}");
            "damaged"
        }
    });
    assert_eq!(
        kinds.collect::<Vec<_>>(),
        ["damaged", "damaged", "foreign", "report"]
    );
    assert!(find::reports(&folder.path().join("nowhere")).is_err());
}

#[test]
fn a_report_with_impossible_numbers_is_left_out_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let sound = run("sound", &[("power", 8.0)], Vec::new());
    let text = serde_json::to_string(&sound).unwrap();
    let poisoned = [
        (
            "negative",
            text.replace("\"gpu_hours\":100.0", "\"gpu_hours\":-5.0"),
        ),
        (
            "absurd",
            text.replace("\"gpu_hours\":100.0", "\"gpu_hours\":1e300"),
        ),
        ("nan", text.replace("\"gpu_hours\":100.0", "\"gpu_hours\":NaN")),
        (
            "infinite",
            text.replace("\"gpu_hours\":100.0", "\"gpu_hours\":1e999"),
        ),
        (
            "more",
            text.replace("\"lost_gpu_hours\":8.0", "\"lost_gpu_hours\":108.0"),
        ),
        ("cause", text.replace("\"power\":8.0", "\"power\":-8.0")),
        ("cut", text[..text.len() / 2].to_owned()),
        (
            "newer",
            text.replace("\"schema_version\":1", "\"schema_version\":99"),
        ),
    ];
    for (name, text) in poisoned.iter().map(|(name, text)| (*name, text)) {
        let path = dir.path().join(name).join("report.json");
        fs::create_dir(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        let Seen::Damaged(why) = find::read(&path) else {
            panic!("{name} was counted");
        };
        assert!(why.contains(name) && why.contains("report.json"), "{why}");
    }
    let path = dir.path().join("report.json");
    fs::write(&path, &text).unwrap();
    assert!(
        matches!(find::read(&path), Seen::Report { .. }),
        "a sound one counts"
    );
}
