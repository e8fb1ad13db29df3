//! `paceline notify`: tests the receivers of notifications, and sends the pending notices of an ended job.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use paceline_sidecar::remedy::RemedyOptions;
use paceline_sidecar::safe_file;
use paceline_sidecar::sink::notify::{self, Receiver};
use rustix::fs::{FlockOperation, flock};

use crate::cli::SettingArgs;
use crate::config;
use crate::output::{self, Style, Usage};

/// `paceline notify`.
#[derive(Debug, Args)]
pub(crate) struct NotifyArgs {
    #[command(subcommand)]
    command: NotifyCommand,
}

#[derive(Debug, Subcommand)]
enum NotifyCommand {
    /// Send the notices that could not be sent before the job ended.
    Flush(FlushArgs),
    /// Send every receiver a notice that is marked as a test, and its resolution.
    Test(TestArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Receivers come from the configuration, as for `paceline run`, or from --notify. The notice is of \
severity info, about this node, and resolved at once.\n\nExit codes: 0 if every receiver accepted it, 1 otherwise.\n\nExample: \
paceline notify test --notify slack=env:SLACK_URL"
)]
struct TestArgs {
    /// Receiver of notifications, as in `paceline run --notify`. May be repeated.
    #[arg(
        long,
        env = "PACELINE_NOTIFY",
        value_name = "KIND=WHERE",
        value_delimiter = ' '
    )]
    notify: Vec<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Receivers come from the configuration, as for `paceline run`, or from --notify, which must \
        equal the job's; notices for other receivers stay pending.\n\nExit codes: 0 if no notice is pending any \
        more, 1 otherwise.\n\nExample: paceline notify flush \
paceline-4711.0"
)]
struct FlushArgs {
    /// The run's directory.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Receiver of notifications, as in `paceline run --notify`. May be repeated.
    #[arg(
        long,
        env = "PACELINE_NOTIFY",
        value_name = "KIND=WHERE",
        value_delimiter = ' '
    )]
    notify: Vec<String>,
}

/// Runs the subcommand.
pub(crate) fn command(args: &NotifyArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        NotifyCommand::Flush(args) => flush(args),
        NotifyCommand::Test(args) => test(args),
    }
}

/// Returns the receivers on the command line or, if there are none, those of the configuration.
fn known_receivers(typed: &[String]) -> anyhow::Result<Vec<Receiver>> {
    let given = RemedyOptions {
        notify: typed.to_vec(),
        ..RemedyOptions::default()
    };
    given
        .check_notify()
        .map_err(|why| Usage(format!("--notify: {why}")))?;
    let options = given.or(config::load(&SettingArgs::default())?.remedy);
    Ok(receivers(&options))
}

fn test(args: &TestArgs) -> anyhow::Result<ExitCode> {
    let receivers = known_receivers(&args.notify)?;
    if receivers.is_empty() {
        return Err(Usage(
            "there is no receiver: add one with --notify slack=env:SLACK_URL, or in paceline.toml \
             (docs/notifications.md)"
                .to_owned(),
        )
        .into());
    }
    let node = paceline_sidecar::host::hostname();
    let mut text = String::new();
    let mut is_refused = false;
    for receiver in &receivers {
        let sent = notify::trial(receiver, &node, paceline_sidecar::host::unix_ms());
        is_refused |= sent.is_err();
        text += &match sent {
            Ok(()) => format!("{}: took it\n", receiver.address()),
            Err(why) => format!("{}: rejected it: {why}\n", receiver.address()),
        };
    }
    output::show(&text)?;
    Ok(ExitCode::from(u8::from(is_refused)))
}

fn flush(args: &FlushArgs) -> anyhow::Result<ExitCode> {
    let receivers = known_receivers(&args.notify)?;
    let run = args.run.as_path();
    // Check that the directory is safe, because its pending notices are sent as this user and then removed.
    safe_file::check_dir(run).with_context(|| run.display().to_string())?;
    let held = File::open(run).with_context(|| run.display().to_string())?;
    // Fail if another process has the lock, because two concurrent senders would send each notice twice.
    if flock(&held, FlockOperation::NonBlockingLockExclusive).is_err() {
        anyhow::bail!("{}: the job still runs: its aggregator retries", run.display());
    }
    let mut text = String::new();
    let mut is_left = false;
    for (sent, pending) in notify::flush(run, &receivers)? {
        let (receiver, left) = (&pending.receiver, pending.notices);
        text += &match left {
            0 => format!("{receiver}: {sent} notices sent\n"),
            _ => format!(
                "{receiver}: {sent} notices sent, {left} pending in {}\n",
                pending.dir.display()
            ),
        };
        is_left |= left > 0;
    }
    for dir in notify::strangers(run, &receivers)? {
        text += &format!(
            "{}: pending for a receiver that is not configured here: use the same --notify as the job\n",
            dir.display()
        );
        is_left = true;
    }
    if text.is_empty() {
        text = "nothing waits\n".to_owned();
    }
    output::show(&text)?;
    Ok(ExitCode::from(u8::from(is_left)))
}

/// At the end of a run, warns about notices that could not be sent.
pub(crate) fn say_untold(run_dir: &Path, options: &RemedyOptions, style: Style) {
    for pending in notify::pending(run_dir, &receivers(options)) {
        let notices = match pending.notices {
            1 => "1 notice".to_owned(),
            many => format!("{many} notices"),
        };
        output::warning(
            style,
            format_args!(
                "{notices} for {} could not be sent, and are kept in {}; to send them: paceline notify flush {}",
                pending.receiver,
                pending.dir.display(),
                run_dir.display()
            ),
        );
    }
}

/// Parses the receivers. Invalid ones are skipped, but all were validated before.
fn receivers(options: &RemedyOptions) -> Vec<Receiver> {
    let of = |words: &String| Receiver::of(words).ok();
    options.notify.iter().filter_map(of).collect()
}
