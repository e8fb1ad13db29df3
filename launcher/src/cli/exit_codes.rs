//! Exit codes of all commands, in one table for `paceline help exit-codes` and docs/exit-codes.md.

use std::fmt::Write as _;

/// The exit code if there is no job to query, or if nothing could be measured.
pub(crate) const UNKNOWN: u8 = 3;
/// The exit code for a mistake in the command line or the configuration (`EX_USAGE` of sysexits.h).
pub(crate) const USAGE: u8 = 64;

/// A row of the table: the exit code and its meaning.
pub(crate) type Row = (&'static str, &'static str);

/// Exit codes of every command except `run`.
pub(crate) const COMMANDS: [Row; 5] = [
    ("0", "success; of a check: no problem"),
    (
        "1",
        "failure; the message has the reason. Of a check (doctor, preflight --strict): a warning. notify flush: \
         notices are still pending. notify test: a receiver rejected the notice. inject-manifest: nothing could \
         be injected",
    ),
    (
        "2",
        "of a check: critical. doctor: a job would run unwatched; preflight: a node is unfit; nccl-bench: wrong \
         results; slurm prolog: the node was drained",
    ),
    (
        "3",
        "no result: no job runs here, its aggregator does not answer, a GPU could not be read, nothing could be \
         compared or measured",
    ),
    (
        "64",
        "usage error: a mistake in the command line, in a variable or in a configuration file; nothing was started",
    ),
];

/// Exit codes of `paceline run`.
pub(crate) const RUN: [Row; 5] = [
    (
        "the command's",
        "the command ran, monitored or not; Paceline does not change its exit code",
    ),
    ("128 + n", "signal n ended the command"),
    (
        "126, 127",
        "the command could not be started: not executable, not found",
    ),
    (
        "64",
        "usage error: a mistake in the command line or in ./paceline.toml; the command was not started. A \
         variable or a site's file with a mistake is ignored with a warning",
    ),
    (
        "2, 3",
        "only with --preflight: the preflight found an unfit node (--preflight-policy fail or exclude), or had \
         nothing to compare with; the command was not started",
    ),
];

/// Exit codes of Paceline's other programs.
pub(crate) const PROGRAMS: [Row; 4] = [
    ("0", "ended as requested"),
    (
        "1",
        "paceline-sidecar, paceline-operator: failure; the message has the reason",
    ),
    ("2, 3", "paceline-nccl-bench: as paceline nccl-bench"),
    ("64", "usage error: a mistake in the command line"),
];

const HEADINGS: [(&str, &[Row]); 3] = [
    ("paceline run", &RUN),
    ("every other command", &COMMANDS),
    ("other programs", &PROGRAMS),
];

/// Returns the tables as text, wrapped to `width` columns.
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

/// Returns the tables as a documentation page.
#[cfg(test)]
pub(crate) fn page() -> String {
    let mut page = String::from(
        "# Exit codes\n\nExit codes of all programs. `paceline help exit-codes` prints the same table.\n",
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
