//! Runs axe-core on the live page and the report, in light, in dark and in print. `tests/setup/axe.sh PATH` downloads
//! axe-core, and PACELINE_AXE must have its path.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::browser::Browser;
use crate::{ANSWER, Job, paceline};

/// Reads the source of axe-core, whose path is in PACELINE_AXE.
fn axe() -> String {
    let path =
        std::env::var_os("PACELINE_AXE").expect("PACELINE_AXE: where axe.min.js is (tests/setup/axe.sh)");
    fs::read_to_string(path).unwrap()
}

/// Fails if axe finds a serious or critical problem.
fn assert_accessible(page: &mut Browser, axe: &str, what: &str) {
    page.run(&format!("{axe};0"));
    let found = page.run(
        "axe.run(document, {resultTypes: ['violations']}).then(found => JSON.stringify({passes: found.passes.length, \
         bad: found.violations.filter(one => ['serious', 'critical'].includes(one.impact)).map(one => [one.id, one.help, \
         one.nodes.slice(0, 3).map(node => [node.html.slice(0, 200), node.failureSummary])])}))",
    );
    let found: Value = serde_json::from_str(found.as_str().unwrap()).unwrap();
    assert!(
        found["passes"].as_u64().unwrap() > 10,
        "{what}: axe looked at nothing: {found}"
    );
    assert_eq!(found["bad"], json!([]), "{what}: {found:#}");
}

/// Emulates a medium and a color scheme.
fn show_as(page: &mut Browser, media: &str, scheme: &str) {
    let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
    page.call(
        "Emulation.setEmulatedMedia",
        json!({ "media": media, "features": features }),
    );
}

/// Returns the page of a report, which covers a simulated job or, with zero ranks, a job without steps.
fn report(place: &Path, ranks: u32) -> String {
    let dir = place.join(format!("run{ranks}"));
    fs::create_dir_all(&dir).unwrap();
    let done = if ranks == 0 {
        paceline()
            .args(["run", "--quiet", "--run-dir"])
            .arg(&dir)
            .args(["--", "true"])
            .status()
    } else {
        let report = fs::File::create(dir.join("report.json")).unwrap();
        paceline()
            .args([
                "simulate",
                "--json",
                "--steps",
                "150",
                "--gpus",
                &ranks.to_string(),
            ])
            .args(["--fault", "slow rank=5 factor=1.4 from=60 cause=thermal"])
            .stdout(report)
            .status()
    };
    assert!(done.unwrap().success());
    let page = dir.join("report.html");
    let made = paceline().arg("report").arg(&dir).arg("--html").status();
    assert!(made.unwrap().success() && page.exists());
    format!("file://{}", page.display())
}

#[test]
#[ignore = "needs chromium and axe-core"]
fn a_report_keeps_nobody_out() {
    let place = TempDir::new().unwrap();
    let axe = axe();
    let mut page = Browser::start();
    for ranks in [0, 8, 512] {
        let address = report(place.path(), ranks);
        // The narrow width is that of a phone, where wide parts scroll.
        for (media, scheme, width) in [
            ("screen", "light", 1280),
            ("screen", "dark", 1280),
            ("screen", "light", 390),
            ("print", "light", 1280),
        ] {
            page.resize(width, 844);
            show_as(&mut page, media, scheme);
            page.call("Page.navigate", json!({ "url": address }));
            page.until("document.readyState === 'complete' && document.querySelector('main') !== null");
            assert_accessible(
                &mut page,
                &axe,
                &format!("{ranks} ranks, {media}, {scheme}, {width}"),
            );
        }
    }
    assert!(page.complaints.is_empty(), "{:?}", page.complaints);
}

#[test]
#[ignore = "needs chromium and axe-core"]
fn the_live_page_keeps_nobody_out() {
    let job = Job::start(false);
    let axe = axe();
    let mut page = Browser::start();
    for (scheme, width) in [("light", 1280), ("dark", 1280), ("dark", 390)] {
        page.resize(width, 844);
        show_as(&mut page, "screen", scheme);
        page.call(
            "Page.navigate",
            json!({ "url": format!("http://{}/", job.address) }),
        );
        page.until(&format!(
            "{ANSWER}.includes('straggler') && heat.rows.length === 16"
        ));
        assert_accessible(&mut page, &axe, &format!("{scheme}, {width}"));
    }
}
