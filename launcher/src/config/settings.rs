//! The checked settings: every value is parsed, and every error names the value's source.

use std::path::{Path, PathBuf};

use paceline_health::Policy;
use paceline_health::sim::telemetry::gpu::GpuScript;
use paceline_sidecar::aggregator::{journal::segments, place};
use paceline_sidecar::remedy::RemedyOptions;
use paceline_sidecar::sink::otlp::Receiver;
use paceline_sidecar::source::step_log::StepPattern;

use super::keys::{OBSERVE, REMEDIES, policy_key};
use super::page::PageSettings;
use super::raw::{Origin, Raw, Said, key_and_value};
use crate::output::{Usage, nearest};

/// The effective settings of this process.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    /// Name of the job, if set.
    pub(crate) job: Option<String>,
    /// Name of this node, if set.
    pub(crate) node: Option<String>,
    /// Run directory, if set.
    pub(crate) run_dir: Option<PathBuf>,
    /// Size limit of the journal, bytes.
    pub(crate) journal_bytes: Option<u64>,
    /// The aggregator, as HOST or HOST:PORT.
    pub(crate) aggregator: Option<String>,
    /// Key file of the job's nodes.
    pub(crate) key_file: Option<PathBuf>,
    /// Address, access and metrics of the page.
    pub(crate) page: PageSettings,
    /// Simulated GPUs of this node.
    pub(crate) sim_gpus: Option<GpuScript>,
    /// Path of the NVML library.
    pub(crate) nvml_lib: Option<PathBuf>,
    /// The kernel log, or a file in its format.
    pub(crate) kmsg: Option<PathBuf>,
    /// Address of NCCL's RAS service, or `off`.
    pub(crate) ras: Option<String>,
    /// Source of step lines.
    pub(crate) step_log: Option<StepLog>,
    /// Pattern of a step's line.
    pub(crate) step_regex: Option<String>,
    /// Output of NCCL Inspector.
    pub(crate) inspector: Option<PathBuf>,
    /// File that counts job ends.
    pub(crate) textfile: Option<PathBuf>,
    /// File for the metrics page.
    pub(crate) metrics_textfile: Option<PathBuf>,
    /// Receiver of pushed metrics.
    pub(crate) otlp: Option<String>,
    /// If true, print no banner and no verdict block.
    pub(crate) quiet: bool,
    /// If true, print the report as one line on stdout.
    pub(crate) json: bool,
    /// If true, write a summary line into the Slurm Comment.
    pub(crate) slurm_comment: bool,
    /// Automatic actions and notifications, from variables and files.
    pub(crate) remedy: RemedyOptions,
    /// Changes to the policy tables, for the journal.
    pub(crate) changes: Vec<(String, f64)>,
    /// Keys of changes on the command line. Rereading the files does not change these.
    pub(crate) pinned: Vec<String>,
    /// The policy tables with all changes applied.
    pub(crate) policy: Policy,
}

/// Source of step lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StepLog {
    /// The command's standard output.
    Stdout,
    /// The command's standard error.
    Stderr,
    /// A file.
    File(PathBuf),
}

impl StepLog {
    fn of(text: &str) -> StepLog {
        match text {
            "stdout" => StepLog::Stdout,
            "stderr" => StepLog::Stderr,
            path => StepLog::File(PathBuf::from(path)),
        }
    }
}

impl Settings {
    /// Parses and checks the gathered text.
    pub(crate) fn check(raw: &Raw) -> anyhow::Result<Settings> {
        let text = |key: &str| raw.get(key).map(|said| said.text.clone());
        let parsed = |key: &str, parse: &dyn Fn(&str) -> Result<(), String>| match raw.get(key) {
            Some(said) => parse(&said.text).map_err(|why| wrong(key, said, &why)),
            None => Ok(()),
        };
        for key in [
            "job",
            "node",
            "run_dir",
            "key_file",
            "nvml_lib",
            "kmsg",
            "step_log",
            "inspector",
            "textfile",
            "metrics_textfile",
        ] {
            parsed(key, &name)?;
        }
        parsed("metrics_textfile", &collected)?;
        parsed("otlp", &|text| {
            let variable = |name: &str| std::env::var(name).ok();
            let receiver = Receiver::of(text, &variable);
            receiver.map(drop).map_err(|error| error.to_string())
        })?;
        parsed("aggregator", &place::check)?;
        // Do not check a key that is optional. If it is missing, the sidecar reports it.
        if !paceline_sidecar::guard::is_optional() {
            parsed("key_file", &key)?;
        }
        parsed("ras", &|text| {
            if text == "off" {
                Ok(())
            } else {
                host_and_port(text)
            }
        })?;
        parsed("step_regex", &|text| {
            StepPattern::parse(text)
                .map(drop)
                .map_err(|error| error.to_string())
        })?;
        let step_regex = text("step_regex");
        // If a pattern is set but no source, the pattern applies to the command's output.
        let step_log = text("step_log").or_else(|| step_regex.as_ref().map(|_| "stdout".to_owned()));
        let mut sim_gpus = None;
        if let Some(said) = raw.get("sim_gpus") {
            let script = GpuScript::parse(&said.text);
            sim_gpus = Some(script.map_err(|problem| wrong("sim_gpus", said, &problem.to_string()))?);
        }
        let mut journal_bytes = None;
        if let Some(said) = raw.get("journal_bytes") {
            let size = segments::parse_bytes(&said.text);
            journal_bytes = Some(size.map_err(|why| wrong("journal_bytes", said, &why))?);
        }
        let (changes, policy) = changes(raw)?;
        let pinned = raw
            .policy()
            .filter(|(_, said)| matches!(said.origin, Origin::Flag(_)))
            .map(|(key, _)| key.to_owned());
        Ok(Settings {
            job: text("job"),
            node: text("node"),
            run_dir: text("run_dir").map(PathBuf::from),
            journal_bytes,
            aggregator: text("aggregator"),
            key_file: text("key_file").map(PathBuf::from),
            page: PageSettings::check(raw)?,
            sim_gpus,
            nvml_lib: text("nvml_lib").map(PathBuf::from),
            kmsg: text("kmsg").map(PathBuf::from),
            ras: text("ras"),
            step_log: step_log.as_deref().map(StepLog::of),
            step_regex,
            inspector: text("inspector").map(PathBuf::from),
            textfile: text("textfile").map(PathBuf::from),
            metrics_textfile: text("metrics_textfile").map(PathBuf::from),
            otlp: text("otlp"),
            quiet: switch(raw, "quiet")?,
            json: switch(raw, "json")?,
            slurm_comment: switch(raw, "slurm_comment")?,
            remedy: remedy(raw)?,
            changes,
            pinned: pinned.collect(),
            policy,
        })
    }
}

/// Returns the policy changes from `--set` and `--gpu-hour-price`, for commands without other configuration.
pub(crate) fn changes_of(set: &[String]) -> Result<Vec<(String, f64)>, Usage> {
    let mut said: Vec<(String, Said)> = Vec::new();
    for change in set {
        let (key, text) = key_and_value(change)?;
        let origin = Origin::Flag(format!("--set {change}"));
        let text = text.to_owned();
        said.push((policy_name(key), Said { text, origin }));
    }
    let said = said.iter().map(|(key, said)| (key.as_str(), said));
    Ok(checked(said)?.0)
}

/// Returns the policy changes from flags, variables and files, and the resulting tables.
pub(crate) fn changes(raw: &Raw) -> Result<(Vec<(String, f64)>, Policy), Usage> {
    checked(raw.policy())
}

/// Parses the changes, and checks them individually and together.
fn checked<'a>(
    said: impl Iterator<Item = (&'a str, &'a Said)>,
) -> Result<(Vec<(String, f64)>, Policy), Usage> {
    let mut changes = Vec::new();
    let mut origins = Vec::new();
    for (key, said) in said {
        let value = value_of(key, &said.text).map_err(|why| Usage(format!("{}: {why}", said.origin)))?;
        changes.push((key.to_owned(), value));
        origins.push((key, &said.origin));
    }
    let mut policy = Policy::default();
    let set = policy.set_all(changes.iter().map(|(key, value)| (key.as_str(), *value)));
    set.map_err(|problem| {
        let origin = origins.iter().rev().find(|(key, _)| *key == problem.key());
        Usage(match origin {
            Some((_, origin)) => format!("{origin}: {problem}"),
            None => problem.to_string(),
        })
    })?;
    Ok((changes, policy))
}

/// Returns the policy's name for a key that is given under this name or the one in files.
pub(crate) fn policy_name(key: &str) -> String {
    policy_key(key).unwrap_or(key).to_owned()
}

/// Parses `text` as a value of `key`, without checking it against other keys.
pub(crate) fn value_of(key: &str, text: &str) -> Result<f64, String> {
    let mut policy = Policy::default();
    if policy.get(key).is_none() {
        let keys = policy.keys();
        return Err(match nearest(key, keys.iter().map(String::as_str)) {
            Some(meant) => format!("unknown constant `{key}`; did you mean `{meant}`?"),
            None => match policy.apply(key, 1.0) {
                Err(problem) => format!("unknown constant `{key}`: {problem}"),
                Ok(()) => format!("unknown constant `{key}`"),
            },
        });
    }
    let number: f64 = match text {
        "true" if key.starts_with(OBSERVE) => 1.0,
        "false" if key.starts_with(OBSERVE) => 0.0,
        _ => {
            let wanted = if key.starts_with(OBSERVE) {
                "true or false"
            } else {
                "a number"
            };
            let wrong = |_| format!("{key} must be {wanted}, not `{text}`");
            text.parse().map_err(wrong)?
        }
    };
    policy.apply(key, number).map_err(|problem| problem.to_string())?;
    Ok(number)
}

fn remedy(raw: &Raw) -> Result<RemedyOptions, Usage> {
    let mut options = RemedyOptions {
        act: switch(raw, "act")?,
        ..RemedyOptions::default()
    };
    for key in REMEDIES {
        if let Some(said) = raw.get(key) {
            let taken = options.say(key, &said.text);
            taken.map_err(|why| match key {
                // Do not print the value. It may be a secret, because the likeliest mistake is one written here in
                // plain text.
                "notify" => Usage(format!("{}: notify: {why}", said.origin)),
                _ => wrong(key, said, &why),
            })?;
        }
    }
    Ok(options)
}

fn switch(raw: &Raw, key: &str) -> Result<bool, Usage> {
    match raw.get(key) {
        None => Ok(false),
        Some(said) => match said.text.as_str() {
            "true" | "1" | "yes" | "on" => Ok(true),
            "false" | "0" | "no" | "off" => Ok(false),
            other => Err(wrong(key, said, &format!("must be true or false, not `{other}`"))),
        },
    }
}

pub(super) fn name(text: &str) -> Result<(), String> {
    let clean = !text.trim().is_empty() && text.len() <= 256 && !text.contains(|c: char| c.is_control());
    if clean {
        Ok(())
    } else {
        Err("must be a name of 1 to 256 printable characters".to_owned())
    }
}

/// Checks that the file name is one that node_exporter reads.
fn collected(text: &str) -> Result<(), String> {
    text.ends_with(".prom")
        .then_some(())
        .ok_or_else(|| "must end in .prom: node_exporter reads no other file".to_owned())
}

fn host_and_port(text: &str) -> Result<(), String> {
    let is_one = place::has_port(text);
    is_one
        .then_some(())
        .ok_or_else(|| "must be HOST:PORT, such as 127.0.0.1:29600".to_owned())
}

/// Checks the key file. With an invalid key the job would run unmonitored, so the error must come before the start.
pub(super) fn key(path: &str) -> Result<(), String> {
    let read = paceline_sidecar::guard::Key::read(Path::new(path));
    read.map(drop).map_err(|error| error.to_string())
}

pub(super) fn wrong(key: &str, said: &Said, why: &str) -> Usage {
    Usage(format!("{}: {key} = {:?}: {why}", said.origin, said.text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::SettingArgs;
    use crate::config::raw::{Surroundings, gather};

    fn check(args: &SettingArgs) -> Result<Settings, String> {
        let around = Surroundings {
            variable: Box::new(|_| None),
            files: Vec::new(),
            left_out: Vec::new(),
        };
        let raw = gather(args, &around).map_err(|usage| usage.0)?;
        Settings::check(&raw).map_err(|problem| problem.to_string())
    }

    #[test]
    fn a_mistake_names_where_it_stood() {
        let args = |change: &dyn Fn(&mut SettingArgs)| {
            let mut args = SettingArgs::default();
            change(&mut args);
            check(&args).unwrap_err()
        };
        assert_eq!(
            args(&|a| a.aggregator = Some("here:".into())),
            "--aggregator: aggregator = \"here:\": must be HOST or HOST:PORT, such as node-0 or 10.0.0.1:29600"
        );
        let nothing = args(&|a| a.aggregator = Some(",".into()));
        assert!(
            nothing.starts_with("--aggregator: ") && nothing.contains("RELAY:PORT"),
            "{nothing}"
        );
        assert_eq!(
            args(&|a| a.set = vec!["impact.warn_ratio=1".into()]),
            "--set: unknown constant `impact.warn_ratio`; did you mean `impact.warning_ratio`?"
        );
        assert!(args(&|a| a.set = vec!["impact.warning_ratio".into()]).contains("KEY=VALUE"));
        assert!(args(&|a| a.job = Some(" ".into())).starts_with("--job: "));
        assert!(args(&|a| a.sim_gpus = Some("gpus=two".into())).starts_with("--sim-gpus: "));
    }

    #[test]
    fn changes_reach_the_policy() {
        let args = SettingArgs {
            set: vec!["impact.warning_ratio=0.05".into()],
            ..SettingArgs::default()
        };
        let settings = check(&args).unwrap();
        assert_eq!(settings.policy.get("impact.warning_ratio"), Some(0.05));
        assert_eq!(settings.changes, [("impact.warning_ratio".to_owned(), 0.05)]);
    }
}
