//! Exit codes of all commands: the one table, for `paceline help exit-codes` and docs/exit-codes.md.

use std::fmt::Write as _;

/// Nothing to ask, or nothing could be measured.
pub(crate) const UNKNOWN: u8 = 3;
/// A mistake in the command line or the configuration (`EX_USAGE` of sysexits.h).
pub(crate) const USAGE: u8 = 64;

/// A row: the code, and what it means.
pub(crate) type Row = (&'static str, &'static str);

/// Of every command but `run`.
pub(crate) const COMMANDS: [Row; 5] = [
    ("0", "done; of a check: all is well"),
    (
        "1",
        "failed: what was asked for could not be done, and the message says why. Of a check (doctor, preflight --strict): a \
         warning. notify flush: notices still wait. notify test: a receiver took none. inject-manifest: nothing could be \
         injected",
    ),
    (
        "2",
        "of a check: critical. doctor: a job would run unwatched; preflight: something should not take part; nccl-bench: wrong \
         results",
    ),
    (
        "3",
        "nothing to ask or to measure: no job runs here, its aggregator does not answer, no GPU could be read, nothing could be \
         compared",
    ),
    (
        "64",
        "a mistake in the command line, in a variable or in a configuration file; nothing was begun",
    ),
];

/// Of `paceline run`.
pub(crate) const RUN: [Row; 5] = [
    (
        "the command's",
        "it ran, watched or not: nothing of ours changes its code",
    ),
    ("128 + n", "signal n ended the command"),
    (
        "126, 127",
        "the command could not be started: not executable, not found",
    ),
    (
        "64",
        "a mistake in what was typed or in ./paceline.toml; the command was not started. Variables and the site's file that \
         cannot be read are left out with a warning instead",
    ),
    (
        "2, 3",
        "only with --preflight: the preflight found what should not take part (--preflight-policy fail or exclude), or could not \
         compare; the command was not started",
    ),
];

const HEADINGS: [(&str, &[Row]); 2] = [("paceline run", &RUN), ("every other command", &COMMANDS)];

/// For a screen of so many columns.
pub(crate) fn text(width: usize) -> String {
    let mut text = String::from("Exit codes\n");
    for (heading, rows) in HEADINGS {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\n{heading}");
        for (code, meaning) in rows {
            let mut head = format!("  {code:14}");
            for line in crate::output::wrap(meaning, width.saturating_sub(16).max(20)) {
                let _ = writeln!(text, "{head}{line}");
                head = " ".repeat(16);
            }
        }
    }
    text
}

/// As a page of the documentation.
#[cfg(test)]
pub(crate) fn page() -> String {
    let mut page = String::from(
        "# Exit codes\n\nThe one table of all commands; `paceline help exit-codes` prints it.\n",
    );
    for (heading, rows) in HEADINGS {
        let _ = writeln!(page, "\n## {}\n\n| code | |\n|---|---|", heading);
        for (code, meaning) in rows {
            let _ = writeln!(page, "| {code} | {meaning} |");
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_fits_a_narrow_screen() {
        for width in [40, 80] {
            let text = text(width);
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
            assert!(
                text.contains("\npaceline run\n") && text.contains("\n  64 "),
                "{text}"
            );
        }
    }
}
