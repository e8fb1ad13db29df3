//! Messages of `inject-manifest`: what was injected where, and the differences.

use std::fmt::Write as _;

use paceline_inject::manifest::Template;
use paceline_inject::{Injected, Mode};

use crate::output::{Paint, Style, say, warning};

/// Number of context lines around a difference.
const AROUND: usize = 3;
/// Texts with more lines are not compared line by line, because the time grows with the product of their lengths.
const MOST_LINES: usize = 3000;

/// Reports the result for a template. `is_first`: also print what applies to all templates of the object.
pub(super) fn of(done: &Injected, template: &Template, object: &str, is_first: bool, style: Style) {
    let what = match done.mode {
        Mode::Sidecar => "has a sidecar container",
        Mode::Wrap => "is started by paceline run",
    };
    say(format_args!(
        "{} {object}: container {} {what}",
        style.paint(Paint::Faint, "paceline:"),
        done.trainer
    ));
    for note in &done.notes {
        warning(style, format_args!("{object}: {note}"));
    }
    let volumes = done.pod["spec"]["volumes"].as_array();
    let key = volumes.and_then(|all| all.iter().find(|volume| volume["name"] == "paceline-key"));
    let secret = key.and_then(|key| key["secret"]["secretName"].as_str());
    if let Some(secret) = secret.filter(|_| is_first && !template.identity.is_alone) {
        say(format_args!(
            "{} {object}: its pods need the key in the Secret {secret} to connect; without it, each pod is \
             watched alone: head -c 32 \
             /dev/urandom | base64 | kubectl create secret generic {secret} --from-file=key=/dev/stdin",
            style.paint(Paint::Faint, "paceline:")
        ));
    }
}

/// Returns true if a manifest seems to have comments, judged line by line.
pub(super) fn has_comments(text: &str) -> bool {
    text.lines()
        .any(|line| line.trim_start().starts_with('#') || line.contains(" #"))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Line<'a> {
    Same(&'a str),
    Gone(&'a str),
    New(&'a str),
}

/// Returns the difference of two texts, like `diff -u`. It is empty if the texts are the same.
pub(super) fn difference(name: &str, before: &str, after: &str, style: Style) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    if old == new {
        return String::new();
    }
    let lines = compare(&old, &new);
    let changed: Vec<usize> = (0..lines.len())
        .filter(|at| !matches!(lines[*at], Line::Same(_)))
        .collect();
    let mut out = format!("--- {name}\n+++ {name} with paceline\n");
    let mut at = 0;
    let mut shown = 0;
    while at < changed.len() {
        let begin = changed[at].saturating_sub(AROUND).max(shown);
        let mut end = changed[at];
        while at < changed.len() && changed[at] <= end + 2 * AROUND {
            end = changed[at];
            at += 1;
        }
        let end = (end + AROUND + 1).min(lines.len());
        hunk(&lines, begin, end, style, &mut out);
        shown = end;
    }
    out
}

fn hunk(lines: &[Line<'_>], begin: usize, end: usize, style: Style, out: &mut String) {
    let count = |range: &[Line<'_>], is_old: bool| {
        let skipped = |line: &&Line<'_>| match line {
            Line::Same(_) => true,
            Line::Gone(_) => is_old,
            Line::New(_) => !is_old,
        };
        range.iter().filter(skipped).count()
    };
    let (head, range) = (&lines[..begin], &lines[begin..end]);
    let place = format!(
        "@@ -{},{} +{},{} @@",
        count(head, true) + 1,
        count(range, true),
        count(head, false) + 1,
        count(range, false)
    );
    let _ = writeln!(out, "{}", style.paint(Paint::Faint, place));
    for line in range {
        let _ = match line {
            Line::Same(text) => writeln!(out, " {text}"),
            Line::Gone(text) => writeln!(out, "{}", style.paint(Paint::Bad, format_args!("-{text}"))),
            Line::New(text) => writeln!(out, "{}", style.paint(Paint::Good, format_args!("+{text}"))),
        };
    }
}

/// Compares two texts by the longest common subsequence between their common beginning and end.
fn compare<'a>(old: &[&'a str], new: &[&'a str]) -> Vec<Line<'a>> {
    let front = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    let (old_rest, new_rest) = (&old[front..], &new[front..]);
    let pairs = old_rest.iter().rev().zip(new_rest.iter().rev());
    let back = pairs.take_while(|(old, new)| old == new).count();
    let (a, b) = (
        &old_rest[..old_rest.len() - back],
        &new_rest[..new_rest.len() - back],
    );
    let mut lines: Vec<Line<'a>> = old[..front].iter().map(|text| Line::Same(text)).collect();
    if a.len().max(b.len()) > MOST_LINES {
        lines.extend(a.iter().map(|text| Line::Gone(text)));
        lines.extend(b.iter().map(|text| Line::New(text)));
    } else {
        // longest[i][j] is the length of the longest common subsequence of a[i..] and b[j..].
        let mut longest = vec![vec![0u16; b.len() + 1]; a.len() + 1];
        for i in (0..a.len()).rev() {
            for j in (0..b.len()).rev() {
                longest[i][j] = match a[i] == b[j] {
                    true => longest[i + 1][j + 1] + 1,
                    false => longest[i + 1][j].max(longest[i][j + 1]),
                };
            }
        }
        let (mut i, mut j) = (0, 0);
        while i < a.len() || j < b.len() {
            if i < a.len() && j < b.len() && a[i] == b[j] {
                lines.push(Line::Same(a[i]));
                (i, j) = (i + 1, j + 1);
            } else if i < a.len() && (j == b.len() || longest[i + 1][j] >= longest[i][j + 1]) {
                lines.push(Line::Gone(a[i]));
                i += 1;
            } else {
                lines.push(Line::New(b[j]));
                j += 1;
            }
        }
    }
    lines.extend(
        old_rest[old_rest.len() - back..]
            .iter()
            .map(|text| Line::Same(text)),
    );
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_that_of_diff() {
        let numbers = |skip: &[usize]| -> String {
            (1..=20)
                .filter(|n| !skip.contains(n))
                .map(|n| format!("line {n}\n"))
                .collect()
        };
        let style = Style {
            color: false,
            unicode: false,
            width: 80,
        };
        let (old, new) = (numbers(&[]), numbers(&[3]).replace("line 18\n", "line 18\nnew\n"));
        let wanted = "--- Job/j\n+++ Job/j with paceline\n@@ -1,6 +1,5 @@\n line 1\n line 2\n-line 3\n line 4\n line 5\n line 6\n\
                      @@ -16,5 +15,6 @@\n line 16\n line 17\n line 18\n+new\n line 19\n line 20\n";
        assert_eq!(difference("Job/j", &old, &new, style), wanted);
        assert_eq!(difference("Job/j", &old, &old, style), "");
    }
}
