//! Gathers the settings as text by key, with their source. The source with the highest precedence wins.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use paceline_sidecar::safe_file::{Refused, SettingsError, read_settings};

use super::file;
use super::keys::{KEYS, PRICE, PRICE_VARIABLE, policy_key, shown_key, variable};
use super::local;
use super::observed::Observed;
use crate::cli::SettingArgs;
use crate::output::Usage;

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The command line, with this flag.
    Flag(String),
    /// The environment, with this variable.
    Variable(String),
    /// A file.
    File {
        /// The file's path.
        path: PathBuf,
        /// The line, starting at 1.
        line: usize,
        /// The column, starting at 1.
        column: usize,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag(flag) => write!(f, "{flag}"),
            Origin::Variable(name) => write!(f, "{name}"),
            Origin::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
        }
    }
}

/// One value as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    /// The value as the source has it.
    pub(crate) text: String,
    /// The source of the value.
    pub(crate) origin: Origin,
}

/// All values, by key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Raw(BTreeMap<String, Said>);

impl Raw {
    /// Returns the effective value of `key`.
    pub(crate) fn get(&self, key: &str) -> Option<&Said> {
        self.0.get(key)
    }

    /// Returns the policy values, by the policy's name.
    pub(crate) fn policy(&self) -> impl Iterator<Item = (&str, &Said)> {
        self.0
            .iter()
            .filter_map(|(key, said)| Some((policy_key(key)?, said)))
    }

    /// Adds a value, unless a source with higher precedence has already set it.
    fn add(&mut self, key: String, said: Said) {
        self.0.entry(key).or_insert(said);
    }
}

/// Path of the site's configuration file.
const SITE_FILE: &str = "/etc/paceline/config.toml";
/// Keys whose values an ignored file may have restricted, for example by a token for the page or limits of actions. If
/// any file is ignored, the other files do not set these keys.
const BOUNDED: [&str; 2] = ["http", "act"];

/// Files that are ignored except for their `[observe]` section.
static LEFT_OUT: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// From now on, ignores this file except for its `[observe]` section.
pub(crate) fn leave_out(file: &Path) {
    let mut left_out = LEFT_OUT.lock().unwrap_or_else(PoisonError::into_inner);
    left_out.push(file.to_owned());
}

/// Stops ignoring this file.
pub(crate) fn take_up(file: &Path) {
    let mut left_out = LEFT_OUT.lock().unwrap_or_else(PoisonError::into_inner);
    left_out.retain(|left| left != file);
}

/// A function that looks up an environment variable.
type Variable = dyn Fn(&str) -> Option<String>;

/// The environment and the configuration files. Tests supply their own.
pub(crate) struct Surroundings {
    /// Returns the value of a variable.
    pub(crate) variable: Box<Variable>,
    /// The configuration files, highest precedence first.
    pub(crate) files: Vec<PathBuf>,
    /// The files among them that are ignored.
    pub(crate) left_out: Vec<PathBuf>,
}

impl Surroundings {
    /// Returns the environment and files of this process.
    pub(crate) fn real() -> Surroundings {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let user = variable("XDG_CONFIG_HOME")
            .map(PathBuf::from)
            .or_else(|| variable("HOME").map(|home| Path::new(&home).join(".config")));
        let mut files = vec![PathBuf::from(local::FILE)];
        files.extend(user.map(|folder| folder.join("paceline/config.toml")));
        files.push(PathBuf::from(SITE_FILE));
        let left_out = LEFT_OUT.lock().unwrap_or_else(PoisonError::into_inner);
        Surroundings {
            variable: Box::new(variable),
            files,
            left_out: left_out.clone(),
        }
    }
}

/// Gathers the settings from flags, then variables, then files.
pub(crate) fn gather(args: &SettingArgs, around: &Surroundings) -> Result<Raw, Usage> {
    let mut raw = Raw::default();
    for (key, text, flag) in flags(args)? {
        raw.add(
            key,
            Said {
                text,
                origin: Origin::Flag(flag),
            },
        );
    }
    let variables = KEYS.iter().map(|key| (key.name, variable(key.name)));
    for (key, name) in variables.chain([(PRICE, PRICE_VARIABLE.to_owned())]) {
        if let Some(text) = (around.variable)(&name) {
            raw.add(
                key.to_owned(),
                Said {
                    text,
                    origin: Origin::Variable(name),
                },
            );
        }
    }
    for path in &around.files {
        let values = if around.left_out.contains(path) {
            observed(path).values
        } else {
            match read(path)? {
                Some(text) => file::parse(path, &text)?,
                None => continue,
            }
        };
        if path == Path::new(local::FILE) {
            local::check(&values, &around.variable)?;
        }
        let is_bounded = |key: &str| !around.left_out.is_empty() && BOUNDED.contains(&key);
        for (key, said) in values.into_iter().filter(|(key, _)| !is_bounded(key)) {
            raw.add(key, said);
        }
    }
    Ok(raw)
}

/// Returns the `[observe]` section of an ignored file. It is empty if the file cannot be read.
pub(crate) fn observed(path: &Path) -> Observed {
    read_settings(path, is_site(path))
        .map_or_else(|_| Observed::default(), |bytes| Observed::of(path, &bytes))
}

/// Returns the text of a file, or `None` if the file does not exist or belongs to another user.
fn read(path: &Path) -> Result<Option<String>, Usage> {
    let wrong = |problem: &dyn fmt::Display| Usage(format!("{}: {problem}", path.display()));
    match read_settings(path, is_site(path)) {
        Ok(bytes) => String::from_utf8(bytes)
            .map(Some)
            .map_err(|problem| wrong(&problem)),
        Err(SettingsError::Io(problem)) if absent(&problem) => Ok(None),
        // Skip another user's file, because it must not keep a job from starting. The site's file is different: it can
        // only be ignored explicitly ([`leave_out`]).
        Err(SettingsError::Refused(refused @ Refused::Foreign { .. })) if !is_site(path) => {
            local::tell_foreign(path, &refused);
            Ok(None)
        }
        Err(problem) => Err(wrong(&problem)),
    }
}

/// Returns true if the file exists and its owner and mode permit reading it.
pub(crate) fn is_read(path: &Path) -> bool {
    path.is_file() && read_settings(path, is_site(path)).is_ok()
}

fn is_site(path: &Path) -> bool {
    path == Path::new(SITE_FILE)
}

/// Returns true if the error means that the file is absent. A file in a folder that we may not enter counts as absent.
fn absent(problem: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    matches!(problem.kind(), NotFound | NotADirectory | PermissionDenied)
}

fn dashed(key: &str) -> String {
    format!("--{}", key.replace('_', "-"))
}

/// Returns the key, value and flag of every option on the command line.
fn flags(args: &SettingArgs) -> Result<Vec<(String, String, String)>, Usage> {
    let texts = [
        ("job", &args.job),
        ("node", &args.node),
        ("run_dir", &args.run_dir),
        ("journal_bytes", &args.journal_bytes),
        ("aggregator", &args.aggregator),
        ("key_file", &args.key_file),
        ("http", &args.page.http),
        ("http_token_file", &args.page.http_token_file),
        ("http_hosts", &args.page.http_hosts),
        ("http_cert", &args.page.http_cert),
        ("http_key", &args.page.http_key),
        ("metrics", &args.page.metrics),
        ("metrics_compat", &args.page.metrics_compat),
        ("sim_gpus", &args.sim_gpus),
        ("nvml_lib", &args.nvml_lib),
        ("kmsg", &args.kmsg),
        ("ras", &args.ras),
        ("step_log", &args.step_log),
        ("step_regex", &args.step_regex),
        ("inspector", &args.inspector),
        ("textfile", &args.textfile),
        ("metrics_textfile", &args.metrics_textfile),
        ("otlp", &args.otlp),
    ];
    let mut said: Vec<(String, String, String)> = texts
        .iter()
        .filter_map(|(key, text)| Some(((*key).to_owned(), (*text).clone()?, dashed(key))))
        .collect();
    for (key, on) in [
        ("quiet", args.quiet),
        ("json", args.json),
        ("slurm_comment", args.slurm_comment),
    ] {
        if on {
            said.push((key.to_owned(), "true".to_owned(), dashed(key)));
        }
    }
    // The last of repeated values wins, as with any flag. A dedicated flag wins over `--set`.
    let prices = args
        .gpu_hour_price
        .iter()
        .map(|change| (change, "--gpu-hour-price"));
    let set = args.set.iter().map(|change| (change, "--set"));
    for (change, flag) in set.chain(prices).rev() {
        let (key, value) = key_and_value(change)?;
        said.push((shown_key(key), value.to_owned(), flag.to_owned()));
    }
    Ok(said)
}

/// Splits `KEY=VALUE` into its two sides.
pub(crate) fn key_and_value(change: &str) -> Result<(&str, &str), Usage> {
    let halves = change.split_once('=').ok_or_else(|| {
        Usage(format!(
            "--set {change}: must be KEY=VALUE, such as impact.warning_ratio=0.05"
        ))
    })?;
    Ok((halves.0.trim(), halves.1.trim()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_stronger_source_wins_key_by_key() {
        let folder = tempfile::tempdir().unwrap();
        let (near, far) = (folder.path().join("near.toml"), folder.path().join("far.toml"));
        fs::write(&near, "node = \"near\"\nhttp = \"127.0.0.1:1\"\n").unwrap();
        fs::write(
            &far,
            "job = \"far\"\nnode = \"far\"\nrun_dir = \"far\"\nquiet = true\n",
        )
        .unwrap();
        let args = SettingArgs {
            job: Some("flag".into()),
            set: vec![
                "impact.warning_ratio=0.1".into(),
                "impact.warning_ratio=0.2".into(),
            ],
            ..SettingArgs::default()
        };
        let around = Surroundings {
            variable: Box::new(|name| {
                ["PACELINE_JOB", "PACELINE_HTTP"]
                    .contains(&name)
                    .then(|| "variable".to_owned())
            }),
            files: vec![near, folder.path().join("none.toml"), far],
            left_out: Vec::new(),
        };
        let raw = gather(&args, &around).unwrap();
        let text = |key: &str| raw.get(key).map(|said| said.text.as_str());
        assert_eq!(text("job"), Some("flag"));
        assert_eq!(text("http"), Some("variable"));
        assert_eq!(text("node"), Some("near"));
        assert_eq!(text("run_dir"), Some("far"));
        assert_eq!(text("quiet"), Some("true"));
        assert_eq!(text("aggregator"), None);
        assert_eq!(text("detector.impact.warning_ratio"), Some("0.2"));
    }
}
