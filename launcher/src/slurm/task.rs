//! TaskProlog and TaskEpilog, which monitor a trainer without `paceline run`.
//!
//! slurmstepd runs TaskProlog as the job's user in each task, before the command, and takes lines `export NAME=VALUE`
//! from its output (<https://slurm.schedmd.com/prolog_epilog.html>). Afterwards it kills the rest of TaskProlog's
//! process group. Therefore the watch has a session of its own, but it stays in the step's control group and ends with
//! the step. TaskEpilog runs after a task has ended and before Slurm ends the rest of the step. It gives the watch time
//! to finish.
//!
//! A task never fails because of these programs. Their exit code is always 0, and in the worst case the task runs
//! unmonitored.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::Context as _;

use super::{comment, variable};
use crate::cli::SettingArgs;
use crate::config;
use crate::output::{self, Color, Style};
use crate::run::{Detached, is_follower};

/// The variable by which a user disables all this.
const SWITCH: &str = "PACELINE_WATCH";
/// Maximum time for a watch to finish. It must be less than KillWait (30 s), which is the time that nodes of a killed
/// job have.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Runs before a task. Prints the variables to export.
pub(super) fn prolog() -> ExitCode {
    if is_wanted() {
        let said = begin().and_then(|lines| Ok(output::print(&lines)?));
        // Print the warning once, and not in each of thousands of tasks.
        if let (Err(problem), false) = (said, is_follower()) {
            output::warning(style(), format_args!("the tasks run unwatched: {problem:#}"));
        }
    }
    ExitCode::SUCCESS
}

fn begin() -> anyhow::Result<String> {
    let process =
        variable("SLURM_TASK_PID").context("SLURM_TASK_PID is not set: Slurm sets it for its TaskProlog")?;
    let process = process.parse().context("SLURM_TASK_PID")?;
    let name = variable("SLURM_LOCALID").unwrap_or_else(|| "0".to_owned());
    let mut watch = Command::new(std::env::current_exe()?);
    watch.args(["slurm", "watch"]);
    let exports = detached()?.note(&format!("local{name}"), process, watch)?;
    let mut lines = String::new();
    for (name, value) in exports {
        let value = value.to_str().filter(|value| !value.as_bytes().contains(&b'\n'));
        let value = value.with_context(|| format!("{name} is not one line of text"))?;
        let _ = writeln!(lines, "export {name}={value}");
    }
    Ok(lines)
}

/// Runs after a task. Waits for the watch if this was the node's last task.
pub(super) fn epilog() -> ExitCode {
    if is_wanted()
        && let Ok(detached) = detached()
    {
        detached.wait(LAST_WORDS);
    }
    ExitCode::SUCCESS
}

/// Runs the watch, a process that the first of a node's tasks starts.
pub(super) fn watch() -> anyhow::Result<ExitCode> {
    let settings = settings()?;
    let wants_comment = settings.slurm_comment;
    if let Some(run_dir) = Detached::new(settings, style()).watch()?
        && wants_comment
    {
        comment::of_run(&run_dir);
    }
    Ok(ExitCode::SUCCESS)
}

fn detached() -> anyhow::Result<Detached> {
    Ok(Detached::new(settings()?, style()))
}

fn settings() -> anyhow::Result<config::Settings> {
    config::load(&SettingArgs::default())
}

fn style() -> Style {
    Style::stderr(Color::Never)
}

/// Returns true if this is a Slurm task and the user has not disabled monitoring.
fn is_wanted() -> bool {
    let refused = std::env::var_os(SWITCH).is_some_and(|said| said.as_bytes().eq_ignore_ascii_case(b"off"));
    !refused && variable("SLURM_JOB_ID").is_some()
}
