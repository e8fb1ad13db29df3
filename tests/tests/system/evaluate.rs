//! Tests `paceline evaluate`: its table, which must not depend on the number of threads, and its errors for invalid
//! words.

use serde_json::Value;

use crate::launched::{Place, text};

fn table(place: &Place, more: &[&str]) -> Value {
    let args = [&["evaluate", "--suite", "smoke", "--seeds", "1", "--json"], more].concat();
    let output = place.paceline(&args).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_table_is_the_same_on_one_thread_and_on_four() {
    let place = Place::new();
    let one = table(
        &place,
        &["--jobs", "1", "--html", "page.html", "--failures", "failures.txt"],
    );
    assert_eq!(one["schema_version"], 1);
    let rows = one["rows"].as_array().unwrap();
    let row = |name: &str| {
        let mut found = rows
            .iter()
            .filter(|row| row["name"].as_str().unwrap().starts_with(name));
        found.next().unwrap_or_else(|| panic!("no row {name}: {one}"))
    };
    let recall = row("recall, persistent slowdown >= 5 %");
    assert_eq!((&recall["value"], &recall["met"]), (&1.0.into(), &true.into()));
    assert!(recall["target"] == 0.99 && recall["baselines"]["change point"].is_number());
    // There are too few rank-steps for a conclusion, and the bound must show that.
    assert_eq!(row("false alarms per 10,000,000")["met"], false);
    let page = std::fs::read_to_string(place.path("page.html")).unwrap();
    assert!(page.contains("<svg") && !page.contains("http://") && !page.contains("src="));
    // Every world of this suite must get its declared result.
    assert_eq!(place.read("failures.txt"), "");

    place.write("old.json", &one.to_string());
    let output = place
        .paceline([
            "evaluate",
            "--suite",
            "smoke",
            "--seeds",
            "1",
            "--jobs",
            "4",
            "--compare",
            "old.json",
            "--json",
        ])
        .output()
        .unwrap();
    let four: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(four["rows"], one["rows"]);
    assert!(
        text(&output.stderr).contains("nothing changed"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn what_is_asked_wrongly_is_told() {
    let place = Place::new();
    place.write("old.json", "{\"schema_version\":7,\"rows\":[]}");
    for (args, said) in [
        (
            &["--suite", "smok"][..],
            "--suite: no suite \"smok\"; did you mean smoke?",
        ),
        (&["--seeds", "0"][..], "--seeds"),
        (
            &["--compare", "none.json"][..],
            "--compare: none.json: No such file",
        ),
        (
            &["--compare", "old.json"][..],
            "old.json: schema_version 7; this version reads 1",
        ),
    ] {
        let output = place.paceline([&["evaluate"], args].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(64), "{args:?}");
        assert!(
            text(&output.stderr).contains(said),
            "{args:?}: {}",
            text(&output.stderr)
        );
    }
    let listed = place.paceline(["evaluate", "--suite", "list"]).output().unwrap();
    assert_eq!(listed.status.code(), Some(0));
    assert!(text(&listed.stdout).contains("healthy"));
}
