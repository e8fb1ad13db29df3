//! Simulate, replay, report and `run --json` must give the same report.

use serde_json::Value;

use crate::launched::{Place, report_and_advice, text};
use crate::terminal::Typed;

const SLOW: [&str; 8] = [
    "simulate",
    "--gpus",
    "4",
    "--steps",
    "300",
    "--fault",
    "slow rank=2 factor=1.25 from=100",
    "--json",
];

fn json(place: &Place, args: &[&str]) -> Value {
    let output = place.paceline(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    let stdout = text(&output.stdout);
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    serde_json::from_str(stdout).unwrap()
}

#[test]
fn a_simulated_job_its_replay_and_its_report_agree() {
    let place = Place::new();
    let args: Vec<&str> = SLOW.iter().copied().chain(["--journal", "run.ndjson"]).collect();
    let simulated = json(&place, &args);
    let verdict = &simulated["verdicts"][0];
    assert_eq!(
        (&verdict["finding"], &verdict["subject"]["rank"]),
        (&"straggler".into(), &2.into())
    );
    assert_eq!(
        (simulated["schema_version"].as_u64(), &verdict["provenance"]),
        (Some(1), &"sim".into())
    );
    let numbers = &simulated["advice"]["questions"][0]["numbers"][0];
    assert!(
        numbers["value"].is_f64() && numbers["limit"].is_f64(),
        "{numbers}"
    );
    assert_eq!(json(&place, &["replay", "run.ndjson", "--json"]), simulated);
    assert_eq!(json(&place, &["report", "run.ndjson", "--json"]), simulated);
    place.write("saved/report.json", &simulated.to_string());
    assert_eq!(json(&place, &["report", "saved", "--json"]), simulated);
    assert_eq!(
        json(&place, &["report", "saved/report.json", "--json"]),
        simulated
    );
}

/// Changes to the policy are in the journal, so a replay must need no flag for the same result.
#[test]
fn a_changed_constant_travels_with_the_journal() {
    let place = Place::new();
    let with = ["--journal", "run.ndjson", "--set", "impact.critical_ratio=0.9"];
    let args: Vec<&str> = SLOW.iter().copied().chain(with).collect();
    let simulated = json(&place, &args);
    assert_eq!(simulated["verdicts"][0]["severity"], "warning");
    assert_eq!(json(&place, &SLOW)["verdicts"][0]["severity"], "critical");
    assert_eq!(json(&place, &["replay", "run.ndjson", "--json"]), simulated);
}

#[test]
fn the_block_tells_who_since_when_why_cost_and_what_to_do() {
    let place = Place::new();
    let args = &SLOW[..SLOW.len() - 1];
    let block = |color: &str| {
        let output = place.paceline(args).args(["--color", color]).output().unwrap();
        text(&output.stdout).to_owned()
    };
    let plain = block("auto");
    for part in [
        "straggler",
        "rank 2 on node0",
        "since",
        "why",
        "cost",
        "do",
        "coverage",
        "4 of 4 ranks",
    ] {
        assert!(plain.contains(part), "{part}: {plain}");
    }
    assert!(plain.lines().count() <= 24, "one screen: {plain}");
    assert!(
        plain
            .lines()
            .all(|line| line.chars().count() <= 80 || line.contains("truth")),
        "{plain}"
    );
    assert!(!plain.contains('\x1b'));
    assert!(block("always").contains("\x1b["));
    let ascii = place.paceline(args).env("LC_ALL", "C").output().unwrap();
    assert!(text(&ascii.stdout).is_ascii());
}

#[test]
fn a_run_prints_one_line_of_json_behind_the_commands_own_output() {
    let place = Place::new();
    let output = place.run(&["--json", "--quiet", "--job", "j"], "echo own; exit 3");
    assert_eq!(output.status.code(), Some(3));
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    assert_eq!((lines.len(), lines[0]), (2, "own"));
    let (report, advice) = report_and_advice(lines[1]);
    assert_eq!(
        (&report["job"], &report["exits"][0]["code"], advice),
        (&"j".into(), &3.into(), Value::Null)
    );
    assert_eq!(report, place.report("run/report.json"));
}

/// Checks that all elements are closed in order.
pub fn assert_balanced(page: &str) {
    assert!(
        page.starts_with("<!doctype html>") && page.ends_with("</html>\n"),
        "{:.200}",
        page
    );
    let void = ["meta", "link", "br", "img", "!doctype"];
    let mut open: Vec<&str> = Vec::new();
    let mut rest = page;
    while let Some((_, tag)) = rest.split_once('<') {
        let (inside, after) = tag.split_once('>').unwrap();
        let name = inside.split([' ', '/']).find(|word| !word.is_empty()).unwrap();
        rest = after;
        if inside.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "{:.100}", after);
        } else if name == "style" {
            rest = after.split_once("</style>").unwrap().1;
        } else if !inside.ends_with('/') && !void.contains(&name) {
            open.push(name);
        }
    }
    assert_eq!(open, Vec::<&str>::new());
}

#[test]
fn a_run_that_nobody_saw_has_a_page_that_says_so() {
    let place = Place::new();
    let output = place.run(&["--job", "</title><script>alert(1)</script>"], "exit 3");
    assert_eq!(output.status.code(), Some(3));
    assert!(
        text(&output.stderr).contains("run/report.html"),
        "{}",
        text(&output.stderr)
    );
    let page = place.read("run/report.html");
    assert_balanced(&page);
    assert!(
        page.contains("No rank was observed: nothing is known about this job"),
        "{page}"
    );
    assert!(
        page.contains("&lt;script&gt;alert(1)") && !page.contains("<script"),
        "{page}"
    );
    // Files of another run must not be used for this one.
    let output = place
        .paceline(["run", "--run-dir", "run", "--job", "second", "--", "./nowhere"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(127), "{}", text(&output.stderr));
    assert!(place.read("run/report.html").contains("Job second"));
    // A user's own page must not be overwritten.
    place.write("run/report.html", "<h1>mine</h1>");
    let output = place.run(&["--job", "j"], "exit 3");
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(place.read("run/report.html"), "<h1>mine</h1>");
    assert!(
        text(&output.stderr).contains("was not written by paceline"),
        "{}",
        text(&output.stderr)
    );
}

fn simulated(place: &Place, name: &str, more: &[&str]) {
    let args = ["simulate", "--gpus", "4", "--steps", "400", "--json"];
    let found = json(place, &[&args, more].concat());
    place.write(&format!("{name}/report.json"), &found.to_string());
}

fn printed(place: &Place, args: &[&str]) -> (String, String) {
    let output = place.paceline(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    (text(&output.stdout).to_owned(), text(&output.stderr).to_owned())
}

#[test]
fn two_runs_are_compared() {
    let place = Place::new();
    simulated(&place, "a", &[]);
    simulated(&place, "b", &["--seed", "2"]);
    simulated(&place, "slow", &["--fault", "slow rank=2 factor=1.25 from=0"]);
    let told = |a: &str, b: &str| json(&place, &["report", "--compare", a, b, "--json"]);
    assert_eq!(told("a", "b")["told"], "same");
    let worse = told("a", "slow/report.json");
    assert_eq!(worse["told"], "worse", "{worse}");
    assert!(
        (worse["step"]["ratio"].as_f64().unwrap() - 0.2).abs() < 0.08,
        "{worse}"
    );
    assert_eq!(worse["new"][0]["finding"], "straggler", "{worse}");
    assert_eq!(told("slow", "a")["told"], "better");
    let (shown, _) = printed(&place, &["report", "--compare", "a", "slow"]);
    assert!(
        shown.starts_with("B is worse: ") && shown.contains("new in B     straggler of rank 2"),
        "{shown}"
    );
    let (path, _) = printed(&place, &["report", "--compare", "a", "slow", "--html"]);
    assert_eq!(path, "compare.html\n");
    assert_balanced(&place.read("compare.html"));
    let usage = place.paceline(["report", "--compare", "a"]).output().unwrap();
    assert_eq!(usage.status.code(), Some(64));
}

#[test]
fn runs_are_added_up_and_a_damaged_report_is_named() {
    let place = Place::new();
    let slow = [
        "--fault",
        "slow rank=2 factor=1.25 from=100",
        "--gpu-hour-price",
        "2.5",
    ];
    simulated(&place, "runs/one", &slow);
    simulated(&place, "runs/two", &slow);
    place.write("runs/broken/report.json", "{\"schema_version\":1,");
    let all = json(&place, &["report", "--since", "7d", "runs", "--json"]);
    assert_eq!(
        (&all["total"]["runs"], &all["damaged"][0]),
        (
            &2.into(),
            &"runs/broken/report.json:1:20: EOF while parsing a value".into()
        )
    );
    let lost = all["total"]["lost_gpu_hours"].as_f64().unwrap();
    assert!(
        lost > 0.0 && all["total"]["lost_cost"].as_f64().unwrap() > lost * 2.0,
        "{all}"
    );
    assert_eq!(
        (&all["by_node"]["node0"]["runs"], &all["total"]["not_live"]),
        (&2.into(), &2.into()),
        "{all}"
    );
    let (shown, said) = printed(&place, &["report", "--since", "7d", "runs"]);
    assert!(
        shown.starts_with("2 runs in the last 7 days below runs: ") && shown.contains("\nnode0 "),
        "{shown}"
    );
    assert!(said.contains("skipped: runs/broken/report.json"), "{said}");
    let (path, _) = printed(&place, &["report", "--since", "7d", "runs", "--html=week.html"]);
    assert_eq!(path, "week.html\n");
    assert_balanced(&place.read("week.html"));
    let usage = place.paceline(["report", "--since", "soon"]).output().unwrap();
    assert_eq!(usage.status.code(), Some(64));
    assert_eq!(
        place
            .paceline(["report", "--since", "7d", "nowhere"])
            .output()
            .unwrap()
            .status
            .code(),
        Some(1)
    );
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let place = Place::new();
    place
        .paceline(SLOW)
        .args(["--journal", "run.ndjson"])
        .output()
        .unwrap();
    let program = env!("CARGO_BIN_EXE_paceline-under-test");
    let script =
        format!("{program} replay run.ndjson --verdicts | true; {program} replay run.ndjson | head -1");
    let output = std::process::Command::new("sh")
        .args(["-c", &script])
        .current_dir(place.path("."))
        .output()
        .unwrap();
    assert_eq!(text(&output.stderr), "");
    assert!(output.status.success());
}

/// Progress must be shown on a terminal, and not written to a file.
#[test]
fn a_long_journal_shows_how_far_it_is() {
    let place = Place::new();
    let simulated = [
        "simulate",
        "--gpus",
        "8",
        "--steps",
        "10000",
        "--journal",
        "run.ndjson",
    ];
    assert!(place.paceline(simulated).output().unwrap().status.success());
    let length = std::fs::metadata(place.path("run.ndjson")).unwrap().len() / 1_000_000;
    assert!(length > 20, "{length} MB");
    for words in [&["replay", "run.ndjson"][..], &["report", "run.ndjson"]] {
        let output = place.paceline(words).output().unwrap();
        assert_eq!(text(&output.stderr), "");
        let mut typed = Typed::start_as(place.paceline(words));
        typed.until_shown(&format!("/{length} MB, "));
        typed.until_shown("coverage");
        assert_eq!(typed.end(), Some(0));
    }
}
