//! docs/SUMMARY.md must list every page, and its first groups must stay short enough to read.

use std::collections::BTreeSet;

use super::{links, none};
use crate::{files, read};

/// The groups for new users and new sites.
const FIRST: [&str; 3] = ["Getting started", "Running jobs", "Running a site"];
const PAGES: usize = 15;
const LINES: usize = 150;
const README_LINES: usize = 99;

/// Returns the pages of a group of the summary.
fn group(summary: &str, heading: &str) -> Vec<String> {
    let rest = summary.split(&format!("\n# {heading}\n")).nth(1);
    let rest = rest.unwrap_or_else(|| panic!("docs/SUMMARY.md has no group {heading:?}"));
    links(rest.split("\n# ").next().unwrap_or(rest))
}

/// Returns the pages of `docs` that the summary does not list.
fn unlisted(summary: &str, docs: &[String]) -> Vec<String> {
    let listed: BTreeSet<String> = links(summary).into_iter().collect();
    let names = docs.iter().filter_map(|page| page.strip_prefix("docs/"));
    names
        .filter(|name| *name != "SUMMARY.md" && !listed.contains(*name))
        .map(|name| format!("docs/SUMMARY.md does not list {name}"))
        .collect()
}

#[test]
fn the_first_groups_are_short() {
    let summary = read("docs/SUMMARY.md");
    let pages: Vec<String> = FIRST
        .iter()
        .flat_map(|heading| group(&summary, heading))
        .collect();
    let mut found = Vec::new();
    if pages.len() > PAGES {
        found.push(format!("{} pages, at most {PAGES}", pages.len()));
    }
    for page in pages {
        let count = read(&format!("docs/{page}")).lines().count();
        if count > LINES {
            found.push(format!("docs/{page}: {count} lines, at most {LINES}"));
        }
    }
    none(&found);
}

#[test]
fn every_page_is_listed() {
    let docs: Vec<String> = files(&[".md"])
        .into_iter()
        .filter(|page| page.starts_with("docs/"))
        .collect();
    assert!(docs.len() > 50, "only {} pages were found", docs.len());
    none(&unlisted(&read("docs/SUMMARY.md"), &docs));
}

#[test]
fn the_readme_is_short() {
    let count = read("README.md").lines().count();
    assert!(count <= README_LINES, "README.md has {count} lines");
}

#[test]
fn a_page_that_is_missing_is_found() {
    let summary = "\n# One\n\n- [A](a.md)\n  - [B](b/b.md)\n\n# Two\n\n- [C](c.md)\n";
    assert_eq!(group(summary, "One"), ["a.md", "b/b.md"]);
    let docs = ["docs/a.md", "docs/d.md", "docs/SUMMARY.md"].map(str::to_owned);
    assert_eq!(unlisted(summary, &docs), ["docs/SUMMARY.md does not list d.md"]);
}
