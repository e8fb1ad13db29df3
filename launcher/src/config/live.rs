//! `paceline config set` and `paceline config reload`: send a request to the aggregator of a running job.

use std::path::PathBuf;
use std::process::ExitCode;

use paceline_sidecar::aggregator::control::{Answer, Changed, Request, SOCKET, request};

use super::raw::{self, Surroundings};
use super::settings::{policy_name, value_of};
use crate::cli::{ConfigSetArgs, LiveArgs, SettingArgs};
use crate::output::{self, NoJob, Usage};
use crate::run;

/// Changes all the given values, or none of them if one is invalid.
pub(crate) fn set(args: &ConfigSetArgs) -> anyhow::Result<ExitCode> {
    let mut changes = Vec::new();
    for pair in args.pairs.chunks(2) {
        let [key, value] = pair else {
            return Err(Usage(format!("{} has no value: KEY VALUE go in pairs", pair[0])).into());
        };
        let key = policy_name(key);
        let number = value_of(&key, value).map_err(Usage)?;
        changes.push((key, number));
    }
    let unchanged = || {
        let still = |(key, value): &(String, f64)| format!("{key} is {value} already\n");
        changes.iter().map(still).collect()
    };
    tell(&args.live, &Request::Set(changes.clone()), unchanged)
}

/// Makes the job reload its configuration files.
pub(crate) fn reload(args: &LiveArgs) -> anyhow::Result<ExitCode> {
    tell(args, &Request::Reload, || {
        "the files do not change the policy\n".to_owned()
    })
}

fn tell(args: &LiveArgs, what: &Request, unchanged: impl FnOnce() -> String) -> anyhow::Result<ExitCode> {
    let dir = run_dir(args)?;
    match request(&dir, what)? {
        Answer::Refused(why) => Err(Usage(format!("{}: nothing was changed: {why}", dir.display())).into()),
        Answer::Injected(_) => Ok(ExitCode::SUCCESS),
        Answer::Changed(changed) if changed.is_empty() => {
            output::print(&unchanged())?;
            Ok(ExitCode::SUCCESS)
        }
        Answer::Changed(changed) => {
            let line = |Changed { key, was, now }: &Changed| format!("{key} = {now} (was {was})\n");
            output::show(&changed.iter().map(line).collect::<String>())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Returns the run directory that was given or, if none was, that of the only run started from the current directory.
pub(crate) fn run_dir(args: &LiveArgs) -> anyhow::Result<PathBuf> {
    let settings = SettingArgs {
        run_dir: args.run_dir.clone(),
        job: args.job.clone(),
        ..SettingArgs::default()
    };
    let said = raw::gather(&settings, &Surroundings::real())?;
    let text = |key: &str| said.get(key).map(|said| said.text.clone());
    // A job on the command line takes precedence over a run directory from a file.
    if let (Some(job), None) = (&args.job, &args.run_dir) {
        return Ok(run::run_dir(job));
    }
    if let Some(dir) = text("run_dir") {
        return Ok(PathBuf::from(dir));
    }
    if let Some(job) = text("job") {
        return Ok(run::run_dir(&job));
    }
    let mut here: Vec<PathBuf> = std::fs::read_dir(".")?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|dir| dir.join(SOCKET).exists())
        .collect();
    here.sort();
    match here.as_slice() {
        [dir] => Ok(dir.clone()),
        [] => Err(NoJob("no job runs from this directory: name one by --run-dir or --job".to_owned()).into()),
        several => {
            let names: Vec<String> = several.iter().map(|dir| dir.display().to_string()).collect();
            let message = format!(
                "several jobs run from this directory: name one by --run-dir: {}",
                names.join(", ")
            );
            Err(Usage(message).into())
        }
    }
}
