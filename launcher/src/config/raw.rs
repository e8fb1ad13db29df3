//! What was said where: text by key, the strongest source winning.

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

/// Where a value stood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// On the command line.
    Flag(String),
    /// In the environment.
    Variable(String),
    /// In a file.
    File {
        /// Which.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// From 1.
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
    /// As it was written.
    pub(crate) text: String,
    /// Where.
    pub(crate) origin: Origin,
}

/// All that was said, by key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Raw(BTreeMap<String, Said>);

impl Raw {
    /// What holds for `key`.
    pub(crate) fn get(&self, key: &str) -> Option<&Said> {
        self.0.get(key)
    }

    /// Values of the policy, by their name in it.
    pub(crate) fn policy(&self) -> impl Iterator<Item = (&str, &Said)> {
        self.0
            .iter()
            .filter_map(|(key, said)| Some((policy_key(key)?, said)))
    }

    /// Adds a value unless a stronger source has given one.
    fn add(&mut self, key: String, said: Said) {
        self.0.entry(key).or_insert(said);
    }
}

/// The site's settings.
const SITE_FILE: &str = "/etc/paceline/config.toml";
/// What a file may have bounded (a token for the page, limits of what is done): where one is left out no other file says it.
const BOUNDED: [&str; 2] = ["http", "act"];

/// Files that are heard of no more than what they want observed only.
static LEFT_OUT: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Without this file everything is read from now on, but for its `[observe]`.
pub(crate) fn leave_out(file: &Path) {
    let mut left_out = LEFT_OUT.lock().unwrap_or_else(PoisonError::into_inner);
    left_out.push(file.to_owned());
}

/// This file is read again.
pub(crate) fn take_up(file: &Path) {
    let mut left_out = LEFT_OUT.lock().unwrap_or_else(PoisonError::into_inner);
    left_out.retain(|left| left != file);
}

/// Looks up a variable.
type Variable = dyn Fn(&str) -> Option<String>;

/// The environment and the files, so that tests can bring their own.
pub(crate) struct Surroundings {
    /// Value of a variable.
    pub(crate) variable: Box<Variable>,
    /// Files, strongest first.
    pub(crate) files: Vec<PathBuf>,
    /// Those of them that are left out.
    pub(crate) left_out: Vec<PathBuf>,
}

impl Surroundings {
    /// Those of this process.
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

/// Gathers flags, then variables, then files.
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

/// What a file that is left out wants observed only; one that cannot be read at all says nothing.
pub(crate) fn observed(path: &Path) -> Observed {
    read_settings(path, is_site(path))
        .map_or_else(|_| Observed::default(), |bytes| Observed::of(path, &bytes))
}

/// The text of a file; `None`: it says nothing, for it is not there or another user's.
fn read(path: &Path) -> Result<Option<String>, Usage> {
    let wrong = |problem: &dyn fmt::Display| Usage(format!("{}: {problem}", path.display()));
    match read_settings(path, is_site(path)) {
        Ok(bytes) => String::from_utf8(bytes)
            .map(Some)
            .map_err(|problem| wrong(&problem)),
        Err(SettingsError::Io(problem)) if absent(&problem) => Ok(None),
        // It keeps nobody's job from starting. Without the site's, somebody has to say so ([`leave_out`]).
        Err(SettingsError::Refused(refused @ Refused::Foreign { .. })) if !is_site(path) => {
            local::tell_foreign(path, &refused);
            Ok(None)
        }
        Err(problem) => Err(wrong(&problem)),
    }
}

/// Whether a file is there, and its owner and mode let it be read.
pub(crate) fn is_read(path: &Path) -> bool {
    path.is_file() && read_settings(path, is_site(path)).is_ok()
}

fn is_site(path: &Path) -> bool {
    path == Path::new(SITE_FILE)
}

/// A file that is not there, or lies in a folder that we may not enter, says nothing.
fn absent(problem: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    matches!(problem.kind(), NotFound | NotADirectory | PermissionDenied)
}

fn dashed(key: &str) -> String {
    format!("--{}", key.replace('_', "-"))
}

/// Key, value and flag.
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
    // Of a value that is set twice the last one holds, as with any flag; a flag of its own is more than `--set`.
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

/// The two sides of `KEY=VALUE`.
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
