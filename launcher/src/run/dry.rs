//! `paceline run --dry-run`: prints what would be set and started. It starts and creates nothing.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::directories::place;
use super::directories::share::Share;
use super::instrumentation::environment::additions;
use super::sidecar::process::arguments;
use super::{Plan, cluster};
use crate::output;

/// Version of [`Dry`].
const SCHEMA: u32 = 1;

#[derive(Debug, Serialize)]
struct Dry {
    schema_version: u32,
    job: String,
    node: String,
    run_dir: PathBuf,
    aggregator: String,
    /// Number of tasks on this node that share one sidecar.
    tasks: u32,
    environment: Vec<(&'static str, String)>,
    sidecar: Vec<String>,
    command: Vec<String>,
}

/// Prints what the run of `plan` would do.
pub(crate) fn show(plan: &Plan) -> anyhow::Result<()> {
    let dry = Dry::of(plan);
    let asked = plan.settings.page.http.as_ref();
    if let Some((place, problem)) = asked.and_then(|place| Some((place, place.probe().err()?))) {
        let told =
            format_args!("--http {place}: {problem}; the live page would get a free port of 127.0.0.1");
        output::warning(plan.style, told);
    }
    let text = if plan.settings.json {
        serde_json::to_string(&dry)? + "\n"
    } else {
        dry.text()
    };
    Ok(output::print(&text)?)
}

impl Dry {
    fn of(plan: &Plan) -> Dry {
        let places = place::places();
        let memory = places
            .iter()
            .find(|place| place.is_dir())
            .cloned()
            .unwrap_or_default();
        let ring_dir = match plan.task {
            Some(_) => Share::dir_in(&memory, &plan.job, &plan.node),
            None => memory.join("paceline-PID-RANDOM"),
        };
        let text = |value: &std::ffi::OsStr| value.to_string_lossy().into_owned();
        let added = additions(plan, Some(&ring_dir), Some(&ring_dir.join("python")));
        let mut sidecar = vec!["paceline".to_owned()];
        sidecar.extend(
            arguments(plan, &plan.run_dir, &ring_dir, None)
                .iter()
                .map(|word| text(word)),
        );
        Dry {
            schema_version: SCHEMA,
            job: plan.job.clone(),
            node: plan.node.clone(),
            run_dir: plan.run_dir.clone(),
            aggregator: plan
                .settings
                .aggregator
                .clone()
                .unwrap_or_else(|| "this host".to_owned()),
            tasks: plan.task.map_or(1, |task: cluster::Task| task.on_node),
            environment: added.iter().map(|(name, value)| (*name, text(value))).collect(),
            sidecar,
            command: plan.command.iter().map(|word| text(word)).collect(),
        }
    }

    fn text(&self) -> String {
        let mut lines = vec![
            ("job", self.job.clone()),
            ("node", self.node.clone()),
            ("run directory", shown(&self.run_dir)),
            ("aggregator", self.aggregator.clone()),
        ];
        if self.tasks > 1 {
            lines.push(("tasks", format!("{} on this node share one sidecar", self.tasks)));
        }
        let set = self.environment.iter();
        lines.extend(set.map(|(name, value)| ("set", format!("{name}={}", quoted(value)))));
        lines.push(("sidecar", words(&self.sidecar)));
        lines.push(("command", words(&self.command)));
        let line = |(what, value): &(&str, String)| format!("{what:<14} {value}\n");
        lines.iter().map(line).collect()
    }
}

fn shown(path: &Path) -> String {
    quoted(&path.display().to_string())
}

fn words(words: &[String]) -> String {
    words
        .iter()
        .map(|word| quoted(word))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-+=/.,:@%[]".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_as_a_shell_takes_them() {
        for (word, wanted) in [
            ("--a=b", "--a=b"),
            ("", "''"),
            ("it's", "'it'\\''s'"),
            ("a b", "'a b'"),
        ] {
            assert_eq!(quoted(word), wanted);
        }
    }
}
