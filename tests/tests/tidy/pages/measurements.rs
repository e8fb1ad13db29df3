//! A page of measurements must have the date of its figures and the command that reproduces them.

use super::none;
use crate::{files, read};

const FOLDER: &str = "docs/measurements/";

/// Returns true if the page has a day such as 2026-11-23.
fn has_date(page: &str) -> bool {
    let is_day = |word: &[u8]| {
        word.iter().enumerate().all(|(at, one)| match at {
            4 | 7 => *one == b'-',
            _ => one.is_ascii_digit(),
        })
    };
    page.as_bytes().windows(10).any(is_day)
}

fn lacks(name: &str, page: &str) -> Vec<String> {
    let mut found = Vec::new();
    if !has_date(page) {
        found.push(format!("{name} has no date (YYYY-MM-DD)"));
    }
    if !page.lines().any(|line| line == "```sh") {
        found.push(format!("{name} has no command (```sh)"));
    }
    found
}

#[test]
fn each_page_has_a_date_and_a_command() {
    let pages = files(&[".md"])
        .into_iter()
        .filter(|page| page.starts_with(FOLDER));
    let pages: Vec<String> = pages.filter(|page| !page.ends_with("/index.md")).collect();
    assert!(pages.len() > 10, "only {} pages were found", pages.len());
    let found: Vec<String> = pages.iter().flat_map(|page| lacks(page, &read(page))).collect();
    none(&found);
}

#[test]
fn a_page_without_them_is_found() {
    assert_eq!(lacks("p", "On 2026-11-23:\n```sh\nx\n```\n"), [""; 0]);
    let wanted = ["p has no date (YYYY-MM-DD)", "p has no command (```sh)"];
    assert_eq!(lacks("p", "On 2026-1-23:\n```text\nx\n```\n"), wanted);
}
