//! Checks project rules that a compiler does not check, such as dependencies, file lengths, and docs that match the
//! code.

#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

mod commands;
mod folders;
mod manifests;
mod metrics;
mod pages;
mod report_page;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use paceline_health::Policy;
use paceline_health::verdict::{Cause, Finding};

/// Files that may exceed 400 lines, each with the reason. None may exceed 1,000.
const LONG: [(&str, &str); 1] = [(
    "sidecar/probe/python/tests/test_torch.py",
    "a program for each case; they share one beginning",
)];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the files that git tracks (or would track), by suffix.
fn files(endings: &[&str]) -> Vec<String> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(listed.status.success(), "the tidy tests need a git checkout");
    let text = String::from_utf8(listed.stdout).unwrap();
    let wanted =
        |path: &&str| endings.iter().any(|ending| path.ends_with(ending)) && root().join(path).exists();
    text.lines().filter(wanted).map(str::to_owned).collect()
}

/// Replaces each run of white space by one blank, so that line breaks do not matter.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn rooms_depend_on_each_other_in_one_direction() {
    let allowed = BTreeMap::from([
        ("sidecar/probe/ring", vec![]),
        ("sidecar/probe/nccl-profiler", vec!["paceline-ring"]),
        ("deploy/inject", vec![]),
        ("deploy/operator", vec!["paceline-health", "paceline-inject"]),
        ("health", vec![]),
        (
            "nccl-bench",
            vec!["paceline-health", "paceline-seal", "paceline-sidecar"],
        ),
        (
            "sidecar",
            vec!["paceline-health", "paceline-ring", "paceline-seal"],
        ),
        (
            "launcher",
            vec![
                "paceline-health",
                "paceline-inject",
                "paceline-nccl-bench",
                "paceline-ring",
                "paceline-seal",
                "paceline-sidecar",
            ],
        ),
    ]);
    for (room, allowed) in allowed {
        let manifest: toml::Table = read(&format!("{room}/Cargo.toml")).parse().unwrap();
        let none = toml::Table::new();
        let dependencies = manifest
            .get("dependencies")
            .and_then(toml::Value::as_table)
            .unwrap_or(&none);
        for name in dependencies.keys().filter(|name| name.starts_with("paceline")) {
            assert!(
                allowed.contains(&name.as_str()),
                "{room} must not depend on {name}"
            );
        }
        if room == "sidecar/probe/ring" {
            assert!(dependencies.is_empty(), "the ring's format has no dependencies");
        }
    }
}

#[test]
fn the_pure_crate_stays_pure() {
    let manifest: toml::Table = read("health/Cargo.toml").parse().unwrap();
    let dependencies: Vec<&String> = manifest["dependencies"].as_table().unwrap().keys().collect();
    assert_eq!(
        dependencies,
        [
            "crc32fast",
            "hdrhistogram",
            "percent-encoding",
            "serde",
            "serde_json",
            "thiserror",
            "toml"
        ]
    );
    let bans = read("health/clippy.toml");
    for banned in [
        "Instant",
        "SystemTime",
        "HashMap",
        "HashSet",
        "File",
        "TcpStream",
        "thread::spawn",
    ] {
        assert!(bans.contains(banned), "health/clippy.toml does not ban {banned}");
    }
}

#[test]
fn the_generator_shares_no_code_with_the_detector() {
    for path in files(&[".rs"])
        .iter()
        .filter(|path| path.starts_with("health/src/sim/"))
    {
        let text = read(path);
        for shared in ["crate::detect", "crate::stats", "detect::", "stats::"] {
            assert!(!text.contains(shared), "{path} uses {shared}");
        }
    }
}

#[test]
fn files_are_short() {
    for path in files(&[".rs", ".py"]) {
        let lines = read(&path).lines().count();
        let excused = LONG.iter().any(|(long, _)| *long == path);
        assert!(
            lines <= if excused { 1000 } else { 400 },
            "{path} has {lines} lines"
        );
    }
}

#[test]
fn every_finding_is_in_the_runbook_as_the_table_has_it() {
    let runbook = flat(&read("docs/findings.md"));
    let policy = Policy::default();
    for finding in Finding::ALL.iter().copied() {
        let row = policy.finding(finding);
        assert!(
            runbook.contains(&format!("<a id=\"{finding}\"></a> ## {finding}")),
            "{finding} has no section"
        );
        for text in [&row.title, &row.means, &row.look] {
            assert!(
                runbook.contains(&flat(text)),
                "{finding}: docs/findings.md lacks \"{text}\""
            );
        }
        for cause in Cause::ALL.iter().copied() {
            let action = policy.action(finding, cause);
            assert!(
                runbook.contains(&flat(&action)),
                "{finding}: docs/findings.md lacks \"{action}\""
            );
        }
    }
}

#[test]
fn every_finding_has_a_transcript() {
    let transcripts: String = files(&[".txt"])
        .iter()
        .filter(|path| path.starts_with("health/tests/transcripts/"))
        .map(|path| read(path))
        .collect();
    for finding in Finding::ALL.iter().copied() {
        assert!(
            transcripts.contains(finding.name()),
            "no transcript shows {finding}"
        );
    }
}

#[test]
fn every_finding_has_an_alert() {
    let rules = read("deploy/prometheus/paceline.rules.yaml");
    for finding in Finding::ALL {
        assert!(
            rules.contains(&format!("finding=\"{finding}\"")),
            "no alert for {finding}"
        );
        assert!(
            rules.contains(&format!("docs/findings.md#{finding}")),
            "no runbook for {finding}"
        );
    }
}

#[test]
fn links_between_our_pages_lead_somewhere() {
    for page in files(&[".md"]) {
        let text = read(&page);
        let base = Path::new(&page).parent().unwrap().to_owned();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = target.split('#').next().unwrap();
            if path.is_empty() || path.contains("://") {
                continue;
            }
            assert!(root().join(&base).join(path).exists(), "{page} links to {target}");
        }
    }
}

#[test]
fn the_readme_opens_with_two_commands() {
    let readme = read("README.md");
    let opening: String = readme.lines().take(40).collect::<Vec<_>>().join("\n");
    assert!(opening.contains("cargo run --release -- demo") && opening.contains("tests/run"));
    assert!(read(".ci/run").contains("tests/run"));
}
