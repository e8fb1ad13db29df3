//! `paceline doctor`: shows which data sources a job on this machine can use, what is missing, and what to do about it.
//! It starts no job, changes nothing, and ends within ten seconds. A check that has no answer by then reports that.

mod host;
mod job;
mod python;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use crate::cli::SettingArgs;
use crate::config::{self, Settings};
use crate::output::{self, Color, Paint, Style};

/// Version of the JSON output.
const SCHEMA_VERSION: u32 = 1;
/// Time limit of all checks together, one second less than the promised ten.
const DEADLINE: Duration = Duration::from_secs(9);
/// Time limit of a program that a check starts. It is shorter, so that the check can still report the timeout.
const STARTED: Duration = Duration::from_secs(8);
/// Width of the column with the checks' names.
const NAME: usize = 12;

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 no problem, 1 an optional source is missing, 2 a job would not start or would \
        run unwatched.\n\nExample: paceline doctor -- torchrun --nnodes 2 --rdzv-endpoint node-0:29500 train.py"
)]
pub(crate) struct DoctorArgs {
    /// The Python of the trainers [default: python3, else python of PATH].
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    /// Print it as one line of JSON.
    #[arg(long)]
    json: bool,
    /// Command of the job; it may name the rendezvous address. It is not started.
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Light {
    /// No problem was found.
    Green,
    /// A job would run and be monitored, but with less data.
    Yellow,
    /// A job would not start, or would run unmonitored.
    Red,
}

/// The name and the result of a check.
#[derive(Clone, Debug, Serialize)]
struct Check {
    name: &'static str,
    light: Light,
    /// What the check found.
    says: String,
    /// What to do about it. Empty if nothing is to be done.
    #[serde(rename = "do")]
    act: String,
}

impl Check {
    fn green(name: &'static str, says: impl Into<String>) -> Check {
        Check::of(name, Light::Green, says, "")
    }

    fn of(name: &'static str, light: Light, says: impl Into<String>, act: impl Into<String>) -> Check {
        Check {
            name,
            light,
            says: says.into(),
            act: act.into(),
        }
    }
}

/// What all checks get as input.
#[derive(Clone)]
struct Subject {
    /// The settings, or `None` if they cannot be read, which is itself a finding.
    settings: Option<Settings>,
    python: Option<PathBuf>,
    command: Vec<OsString>,
}

type Look = fn(&Subject) -> Check;

/// All checks, in display order.
const CHECKS: [(&str, Look); 11] = [
    ("settings", host::settings),
    ("GPUs", host::gpus),
    ("kernel log", host::kernel_log),
    ("memory", host::memory),
    ("page", host::page),
    ("key", host::key),
    ("aggregator", host::aggregator),
    ("Python", python::hook),
    ("PyTorch", python::torch),
    ("NCCL", python::nccl),
    ("job", job::seen),
];

/// Runs all checks.
pub(crate) fn command(args: &DoctorArgs, color: Color) -> anyhow::Result<ExitCode> {
    let subject = Subject {
        settings: config::load(&SettingArgs::default()).ok(),
        python: args.python.clone(),
        command: args.command.clone(),
    };
    let checks = all(&subject, &CHECKS, DEADLINE);
    let worst = checks
        .iter()
        .map(|check| check.light)
        .max()
        .unwrap_or(Light::Green);
    let text = if args.json {
        let all = serde_json::json!({ "schema_version": SCHEMA_VERSION, "light": worst, "checks": checks });
        output::escaped(&all.to_string()).into_owned() + "\n"
    } else {
        render(&checks, Style::stdout(color))
    };
    output::show(&text)?;
    Ok(ExitCode::from(worst as u8))
}

/// Runs each check in its own thread, so that a driver or file system that hangs does not block the other checks.
fn all(subject: &Subject, checks: &[(&'static str, Look)], deadline: Duration) -> Vec<Check> {
    let until = Instant::now() + deadline;
    let (sender, answers) = channel();
    for (index, (_, look)) in checks.iter().copied().enumerate() {
        let (sender, subject) = (sender.clone(), subject.clone());
        // Do not join the thread, which ends with the process.
        std::thread::spawn(move || sender.send((index, look(&subject))));
    }
    drop(sender);
    let mut found: Vec<Option<Check>> = vec![None; checks.len()];
    while let Ok((index, check)) = answers.recv_timeout(until.saturating_duration_since(Instant::now())) {
        found[index] = Some(check);
    }
    let missing = |name| {
        let says = format!("no answer within {} s", deadline.as_secs());
        Check::of(
            name,
            Light::Yellow,
            says,
            "check whether a file system or the driver hangs, and try again",
        )
    };
    let names = checks.iter().map(|(name, _)| *name);
    found
        .into_iter()
        .zip(names)
        .map(|(check, name)| check.unwrap_or_else(|| missing(name)))
        .collect()
}

fn render(checks: &[Check], style: Style) -> String {
    let mut text = String::new();
    let room = style.width.saturating_sub(NAME + 4).max(20);
    for check in checks {
        let (paint, mark) = match check.light {
            Light::Green => (Paint::Good, style.glyph("✔", "ok")),
            Light::Yellow => (Paint::Warn, style.glyph("▲", "!")),
            Light::Red => (Paint::Bad, style.glyph("●", "*")),
        };
        let name = check.name;
        let mut head = format!("{} {name:NAME$} ", style.paint(paint, format_args!("{mark:2}")));
        let act = (!check.act.is_empty()).then(|| format!("do: {}", check.act));
        for line in [Some(check.says.clone()), act].into_iter().flatten() {
            for line in output::wrap(&line, room) {
                // Writing to a string cannot fail.
                let _ = writeln!(text, "{head}{line}");
                head = " ".repeat(NAME + 4);
            }
        }
    }
    let count = |light| checks.iter().filter(|check| check.light == light).count();
    let (yellow, red) = (count(Light::Yellow), count(Light::Red));
    let sum = match (yellow, red) {
        (0, 0) => "No problem: a job that is started here is watched.".to_owned(),
        (_, 0) => format!(
            "A job that is started here is watched; {yellow} of {} checks need attention.",
            checks.len()
        ),
        _ => format!(
            "{red} of {} checks failed: a job would not start, or run unwatched.",
            checks.len()
        ),
    };
    for line in output::wrap(&sum, style.width) {
        let _ = writeln!(text, "{line}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject() -> Subject {
        Subject {
            settings: None,
            python: None,
            command: Vec::new(),
        }
    }

    #[test]
    fn a_check_that_hangs_is_said_and_holds_up_no_other() {
        let hangs = |_: &Subject| -> Check {
            std::thread::sleep(Duration::from_secs(30));
            Check::green("hangs", "")
        };
        let quick = |_: &Subject| Check::green("quick", "here");
        let begun = Instant::now();
        let checks = all(
            &subject(),
            &[("hangs", hangs), ("quick", quick)],
            Duration::from_millis(300),
        );
        assert!(begun.elapsed() < Duration::from_secs(10));
        assert_eq!((checks[0].light, checks[1].light), (Light::Yellow, Light::Green));
        assert!(checks[0].says.contains("no answer"), "{checks:?}");
    }

    #[test]
    fn the_worst_is_the_exit_code_and_everything_fits_forty_columns() {
        let checks = [
            Check::green("GPUs", "8 GPUs"),
            Check::of(
                "key",
                Light::Red,
                "the file is open to everybody on this host",
                "chmod 600 it",
            ),
        ];
        assert_eq!(checks.iter().map(|check| check.light).max().unwrap() as u8, 2);
        let style = Style {
            color: false,
            unicode: false,
            width: 40,
        };
        let text = render(&checks, style);
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
        assert!(
            text.contains("do: chmod 600 it") && text.contains("1 of 2 checks failed"),
            "{text}"
        );
    }
}
