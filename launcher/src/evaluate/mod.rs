//! `paceline evaluate`: measures how accurate the detector is, on simulated worlds with known truth.
//!
//! Worlds are simulated from seeds ([`suite`]). Each world goes through the detector and through published rules of
//! other projects ([`watch`], [`baselines`]), and the verdicts are compared with the truth ([`score`]). Each number is
//! shown next to its target ([`row`]). `docs/evaluation.md` describes each measurement. The number of threads affects
//! only the duration, because outcomes are scored in the order of the scenarios and seeds.

mod baselines;
mod compare;
mod expect;
mod html;
mod interval;
mod pool;
mod replay;
mod row;
mod scale;
mod score;
mod suite;
mod table;
mod watch;

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use paceline_sidecar::safe_file;

use self::row::{Row, TABLE_VERSION, Table};
use self::score::{Case, Failure};
use self::suite::{Job, MOST_SEEDS, SCORED, Scenario, Suite, TUNING};
use self::watch::Outcome;
use crate::cli::EvaluateArgs;
use crate::output::progress::Progress;
use crate::output::{self, Color, Style, Usage, nearest};

/// Evaluates the detector.
pub(crate) fn command(args: &EvaluateArgs, color: Color) -> anyhow::Result<ExitCode> {
    if args.suite.iter().any(|name| name == "list") {
        output::print(&list())?;
        return Ok(ExitCode::SUCCESS);
    }
    let suites = chosen(&args.suite)?;
    let old = args.compare.as_deref().map(compare::read).transpose()?;
    if args.seeds > MOST_SEEDS / 4 {
        return Err(Usage(format!("--seeds: at most {}", MOST_SEEDS / 4)).into());
    }
    for (flag, path) in [("--html", &args.html), ("--failures", &args.failures)] {
        if let Some(path) = path {
            output::check_writable(flag, path)?;
        }
    }
    let began = Instant::now();
    let evaluation = Evaluation::run(args, &suites, color).map_err(anyhow::Error::msg)?;
    let cases = evaluation.cases();
    let mut rows = score::rows(&cases);
    rows.extend(evaluation.extra.iter().cloned());
    let table = Table {
        schema_version: TABLE_VERSION,
        paceline: env!("CARGO_PKG_VERSION").to_owned(),
        seeds: args.seeds,
        tuning: args.tuning,
        runs: cases.len() as u64,
        elapsed_s: (began.elapsed().as_secs_f64() * 10.0).round() / 10.0,
        rows,
    };
    if let Some(path) = &args.html {
        write(path, &html::page(&table, &cases))?;
    }
    if let Some(path) = &args.failures {
        write(path, &failures(&score::failures(&cases)))?;
    }
    tell(args, color, &table, old.as_ref())?;
    Ok(ExitCode::SUCCESS)
}

fn tell(args: &EvaluateArgs, color: Color, table: &Table, old: Option<&Table>) -> anyhow::Result<()> {
    let changes = old.map(|old| compare::compare(old, table));
    if args.json {
        output::print(&(serde_json::to_string(table)? + "\n"))?;
        if let Some(changes) = &changes {
            // Print the changes on stderr, because stdout contains only the table.
            output::say(table::changes(changes, Style::stderr(color)).trim_end());
        }
        return Ok(());
    }
    let style = Style::stdout(color);
    let mut text = table::render(table, style);
    if let Some(changes) = &changes {
        text.push_str(&table::changes(changes, style));
    }
    Ok(output::print(&text)?)
}

/// All worlds and their outcomes.
struct Evaluation {
    scenarios: Vec<Scenario>,
    jobs: Vec<Job>,
    outcomes: Vec<Outcome>,
    /// Rows that do not come from the worlds of a scenario.
    extra: Vec<Row>,
}

impl Evaluation {
    fn run(args: &EvaluateArgs, suites: &[Suite], color: Color) -> Result<Evaluation, String> {
        let base = if args.tuning { TUNING } else { SCORED };
        let threads = args.jobs.unwrap_or_else(pool::cores);
        let scenarios = suite::of(suites);
        let mut jobs = Vec::new();
        for (index, scenario) in scenarios.iter().enumerate() {
            for seed in 0..args.seeds * scenario.times {
                jobs.push(scenario.job(index, base, seed)?);
            }
        }
        let mut progress = Progress::new(Style::stderr(color), "rank-steps");
        let all: u64 = jobs.iter().map(Job::rank_steps).sum();
        let mut done = 0;
        let outcomes = pool::map(&jobs, threads, Job::rank_steps, watch::watch, |job| {
            done += job.rank_steps();
            progress.at(done, all);
        });
        let mut extra = Vec::new();
        if suites.contains(&Suite::Replay) {
            extra.push(replay::row(base, threads)?);
        }
        if suites.contains(&Suite::Scale) {
            // Run this last and alone, because it measures time and the other work has freed all cores by then.
            let mut progress = Progress::new(Style::stderr(color), "steps of 16,384 ranks");
            extra.extend(scale::rows(base, |step, of| progress.at(step, of))?);
        }
        Ok(Evaluation {
            scenarios,
            jobs,
            outcomes,
            extra,
        })
    }

    fn cases(&self) -> Vec<Case<'_>> {
        self.jobs
            .iter()
            .zip(&self.outcomes)
            .map(|(job, outcome)| Case {
                scenario: &self.scenarios[job.scenario],
                job,
                outcome,
            })
            .collect()
    }
}

/// Returns the requested suites. By default, these are all but the smoke suite.
fn chosen(names: &[String]) -> Result<Vec<Suite>, Usage> {
    if names.is_empty() {
        let all = Suite::ALL.iter().map(|(suite, ..)| *suite);
        return Ok(all.filter(|suite| *suite != Suite::Smoke).collect());
    }
    let unknown = |name: &String| {
        let known = nearest(name, Suite::ALL.iter().map(|(_, known, _)| *known));
        let hint = known.map_or("--suite list shows them".to_owned(), |known| {
            format!("did you mean {known}?")
        });
        Usage(format!("--suite: no suite {name:?}; {hint}"))
    };
    names
        .iter()
        .map(|name| Suite::named(name).ok_or_else(|| unknown(name)))
        .collect()
}

fn list() -> String {
    let mut text = String::new();
    for (suite, name, what) in Suite::ALL {
        let count = suite::of(&[suite]).len();
        let count = if count == 0 {
            String::new()
        } else {
            count.to_string()
        };
        let _ = writeln!(text, "{name:10} {count:>4}  {what}");
    }
    text
}

fn failures(failures: &[Failure]) -> String {
    let mut text = String::new();
    for failure in failures {
        let _ = writeln!(text, "{}", failure.scenario);
        for mistake in &failure.mistakes {
            let _ = writeln!(text, "  {mistake}");
        }
        let _ = writeln!(text, "  {}\n", failure.command);
    }
    text
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    safe_file::write_named(path, text.as_bytes()).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_listed_with_what_shows_them_again() {
        let failure = Failure {
            scenario: "quiet 5 %".to_owned(),
            mistakes: vec!["missed straggler rank 3".to_owned(), "false job-hang".to_owned()],
            command: "paceline simulate --seed 7".to_owned(),
        };
        assert_eq!(failures(&[]), "");
        assert_eq!(
            failures(&[failure]),
            "quiet 5 %\n  missed straggler rank 3\n  false job-hang\n  paceline simulate --seed 7\n\n"
        );
    }
}
