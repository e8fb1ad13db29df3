//! `paceline replay`: runs the detector on a journal again. The same journal and policy give the same verdicts, byte
//! for byte.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::process::ExitCode;

use paceline_health::{Detector, Policy};

use crate::cli::ReplayArgs;
use crate::config::changes_of;
use crate::journal::Journal;
use crate::output::{self, Color, Style};
use crate::report::{self, block};

/// Runs the detector on a journal again.
pub(crate) fn command(args: &ReplayArgs, color: Color) -> anyhow::Result<ExitCode> {
    let changes = changes_of(&[&args.set[..], &args.gpu_hour_price].concat())?;
    let mut policy = Policy::default();
    policy.set_all(changes.iter().map(|(key, value)| (key.as_str(), *value)))?;
    let mut journal = Journal::open(&args.journal, args.skip_broken)?
        .insisting_on(changes)
        .hiding_phases(args.hide_phases);
    // Show no progress bar if the verdicts go to a terminal.
    if !(args.verdicts && io::stdout().is_terminal()) {
        journal = journal.showing(Style::stderr(color));
    }
    let outcome = if args.verdicts {
        print_verdicts(&mut journal, policy)
    } else {
        judge(&mut journal, policy.clone()).and_then(|detector| {
            let found = detector.report();
            let text = if args.json {
                report::line(&found)?
            } else {
                block::render(&found, &policy, Style::stdout(color), &[])
            };
            Ok(output::print(&text)?)
        })
    };
    for warning in journal.warnings() {
        output::warning(Style::stderr(color), warning);
    }
    outcome.map(|()| ExitCode::SUCCESS)
}

fn judge(journal: &mut Journal, policy: Policy) -> anyhow::Result<Detector> {
    journal.fold(policy, |_, detector| {
        // Drop the single verdicts, because the report has the last state of each.
        while detector.poll().is_some() {}
        anyhow::Ok(())
    })
}

fn print_verdicts(journal: &mut Journal, policy: Policy) -> anyhow::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    let printed = journal.fold(policy, |_, detector| {
        while let Some(verdict) = detector.poll() {
            serde_json::to_writer(&mut out, &verdict)?;
            out.write_all(b"\n")?;
        }
        anyhow::Ok(())
    });
    let flushed = out.flush();
    match printed.map(|_| ()).and_then(|()| Ok(flushed?)) {
        Err(problem) if gone(&problem) => Ok(()),
        other => other,
    }
}

/// Returns true if the reader of stdout has exited (`| head`), which is not an error.
fn gone(problem: &anyhow::Error) -> bool {
    let kind = |problem: &io::Error| problem.kind() == io::ErrorKind::BrokenPipe;
    problem.downcast_ref::<io::Error>().is_some_and(kind)
        || problem
            .downcast_ref::<serde_json::Error>()
            .and_then(serde_json::Error::io_error_kind)
            .is_some_and(|kind| kind == io::ErrorKind::BrokenPipe)
}
