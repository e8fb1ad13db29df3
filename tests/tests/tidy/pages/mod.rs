//! Checks the layout, links and words of Markdown pages. Each rule has its own file; this one parses pages.

mod anchors;
mod measurements;
mod paths;
mod summary;
mod width;
mod words;

use crate::{files, read};

/// Generated pages (`launcher/src/cli/reference.rs`). Their text is tested there.
const GENERATED: [&str; 3] = ["docs/commands.md", "docs/settings.md", "docs/exit-codes.md"];

/// A line outside fenced code, with its number, from 1, and its text.
struct Line<'a> {
    number: usize,
    text: &'a str,
}

impl Line<'_> {
    fn is_table(&self) -> bool {
        self.text.trim_start().starts_with('|')
    }
}

/// Returns the lines of a page outside fenced code.
fn lines(page: &str) -> Vec<Line<'_>> {
    let mut is_code = false;
    let mut found = Vec::new();
    for (index, text) in page.lines().enumerate() {
        if text.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            found.push(Line {
                number: index + 1,
                text,
            });
        }
    }
    found
}

/// Returns the pages that are written by hand.
fn written() -> Vec<String> {
    let pages = files(&[".md"]);
    let is_written = |page: &String| !GENERATED.contains(&page.as_str());
    let pages: Vec<String> = pages.into_iter().filter(is_written).collect();
    assert!(pages.len() > 50, "only {} pages were found", pages.len());
    pages
}

/// Returns the targets of the links of a page, outside fenced code.
fn links(page: &str) -> Vec<String> {
    let targets = |line: &Line<'_>| {
        let rest = line.text.split("](").skip(1);
        let targets = rest.filter_map(|rest| rest.split(')').next());
        targets.map(str::to_owned).collect::<Vec<_>>()
    };
    lines(page).iter().flat_map(targets).collect()
}

/// Fails with all problems at once.
fn none(problems: &[String]) {
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

#[test]
fn fenced_code_is_no_prose() {
    let page = "a\n```sh\nb [c](d)\n```\n| e |\n[f](g.md#h) [i](j)\n";
    let numbers: Vec<usize> = lines(page).iter().map(|line| line.number).collect();
    assert_eq!(numbers, [1, 5, 6]);
    assert_eq!(links(page), ["g.md#h", "j"]);
    assert!(read("docs/commands.md").contains("```text"));
}
