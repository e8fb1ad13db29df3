//! Options of remedies: first as strings from the command line, then parsed.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use paceline_health::Provenance;
use paceline_health::id::NodeId;
use paceline_health::remedy::{Response, Rules};

use super::order;
use crate::sink::notify::Receiver;

/// Flags of `paceline run` and of its sidecar.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct RemedyOptions {
    /// Strongest action allowed on a finding: log, signal, leave-node, checkpoint-and-stop or requeue;
    /// straggler=signal for one finding. Several, separated by commas [default: log].
    #[arg(long, env = "PACELINE_ON_FAULT", value_name = "RESPONSE", value_parser = on_fault)]
    pub on_fault: Vec<String>,
    /// Carry out the actions of --on-fault. Without --act, Paceline only logs what it would do.
    #[arg(long, env = "PACELINE_ACT", value_parser = clap::builder::BoolishValueParser::new())]
    pub act: bool,
    /// Override a limit of remedies, such as hold_s=30 or per_job=1. May be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = limit)]
    pub remedy_limit: Vec<String>,
    /// Act on evidence of this kind as if it were live: sim, replay or injected. For rehearsals only. May be repeated.
    #[arg(long, value_name = "KIND", value_parser = rehearsal)]
    pub rehearse: Vec<String>,
    /// File shared by all jobs of the site that records their remedies [default: a file of this user].
    #[arg(long, env = "PACELINE_REMEDY_LEDGER", value_name = "FILE")]
    pub remedy_ledger: Option<PathBuf>,
    /// Signal that makes the trainers write a checkpoint [default: USR1].
    #[arg(long, env = "PACELINE_CHECKPOINT_SIGNAL", value_name = "SIGNAL", value_parser = signal)]
    pub checkpoint_signal: Option<String>,
    /// Timeout for a checkpoint, seconds [default: 300].
    #[arg(long, env = "PACELINE_CHECKPOINT_WAIT", value_name = "S")]
    pub checkpoint_wait: Option<u64>,
    /// Time between SIGTERM and SIGKILL for the command, seconds [default: 30, as Slurm's KillWait].
    #[arg(long, env = "PACELINE_STOP_GRACE", value_name = "S")]
    pub stop_grace: Option<u64>,
    /// Command that requeues the job; {node} stands for the node to exclude and {job} for the job.
    #[arg(long, env = "PACELINE_REQUEUE_COMMAND", value_name = "COMMAND")]
    pub requeue_command: Option<String>,
    /// Receiver of notifications: alertmanager=URL, webhook=URL, slack=env:NAME, pagerduty=env:NAME or exec=PROGRAM;
    /// options after commas: severity=critical, hmac=file:PATH, bearer=file:PATH, ca=file:PATH. Secrets by env:NAME
    /// or file:PATH only. May be repeated.
    // `check_notify` checks this, because clap's error messages contain the value, and a value may be a secret.
    #[arg(
        long,
        env = "PACELINE_NOTIFY",
        value_name = "KIND=WHERE",
        value_delimiter = ' '
    )]
    pub notify: Vec<String>,
}

/// The parsed options.
#[derive(Clone, Debug, PartialEq)]
pub struct RemedyPlan {
    /// Rules for the guard.
    pub rules: Rules,
    /// The ledger that the site's jobs share. `None` if this user has no directory for it.
    pub ledger: Option<PathBuf>,
    /// The signal that makes trainers write a checkpoint.
    pub signal: String,
    /// Timeout for a checkpoint, milliseconds.
    pub wait_ms: u64,
    /// Time between SIGTERM and SIGKILL, milliseconds.
    pub grace_ms: u64,
    /// The command that requeues the job. Empty if none was given.
    pub requeue: Vec<String>,
    /// Receivers of notifications.
    pub receivers: Vec<Receiver>,
    /// The aggregator's node. If the job loses it, the job ends.
    pub home: Option<NodeId>,
    /// The key for budgets and cool-down, which is the scheduler's job number. If empty, the job's name is used.
    pub account: Arc<str>,
}

impl Default for RemedyPlan {
    /// Returns a plan without actions and receivers.
    fn default() -> RemedyPlan {
        RemedyPlan {
            rules: Rules::default(),
            ledger: None,
            signal: "USR1".to_owned(),
            wait_ms: 300_000,
            grace_ms: 30_000,
            requeue: Vec::new(),
            receivers: Vec::new(),
            home: None,
            account: Arc::from(""),
        }
    }
}

impl RemedyOptions {
    /// Checks that all receivers are valid.
    ///
    /// # Errors
    /// What the problem is, without the value.
    pub fn check_notify(&self) -> Result<(), String> {
        self.notify.iter().try_for_each(|words| receiver(words).map(drop))
    }

    /// Returns messages about secrets that cannot be read now. They are not errors, because a job should not run
    /// unmonitored for this reason.
    pub fn unreadable(&self) -> Vec<String> {
        let wrong = |words: &String| Receiver::parse(words).err().map(|error| error.to_string());
        self.notify.iter().filter_map(wrong).collect()
    }

    /// Parses the options.
    pub fn plan(&self) -> RemedyPlan {
        let mut rules = Rules::default();
        rules.act = self.act;
        rules.requeue_needs_node = self
            .requeue_command
            .as_ref()
            .is_some_and(|words| words.contains("{node}"));
        // Errors cannot occur here, because all values were validated when the command line was read.
        let _ = self.on_fault.iter().try_for_each(|words| rules.on_fault(words));
        let _ = self
            .remedy_limit
            .iter()
            .try_for_each(|change| rules.limit(change));
        rules.rehearsal = self.rehearse.iter().filter_map(|word| provenance(word)).collect();
        let read = |words: &String| Receiver::of(words).ok();
        let default = RemedyPlan::default();
        let milliseconds = |seconds: u64| seconds.saturating_mul(1000);
        RemedyPlan {
            rules,
            ledger: self.remedy_ledger.clone().or_else(own_ledger),
            signal: self.checkpoint_signal.clone().unwrap_or(default.signal),
            wait_ms: self.checkpoint_wait.map_or(default.wait_ms, milliseconds),
            grace_ms: self.stop_grace.map_or(default.grace_ms, milliseconds),
            requeue: self
                .requeue_command
                .iter()
                .flat_map(|command| command.split_whitespace().map(str::to_owned))
                .collect(),
            receivers: self.notify.iter().filter_map(read).collect(),
            home: None,
            account: account(&variable).into(),
        }
    }

    /// Returns the same options, with signal in place of leave-node.
    pub fn only_signalling(&self) -> RemedyOptions {
        let less = |words: &String| words.replace(Response::LeaveNode.name(), Response::Signal.name());
        RemedyOptions {
            on_fault: self.on_fault.iter().map(less).collect(),
            ..self.clone()
        }
    }

    /// Returns the same options as arguments for a sidecar.
    pub fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        let number = |value: Option<u64>| value.map(|value| value.to_string());
        let mut each = |flag: &str, values: &[String]| {
            words.extend(values.iter().map(|value| format!("--{flag}={value}")));
        };
        each("on-fault", &self.on_fault);
        each("remedy-limit", &self.remedy_limit);
        each("rehearse", &self.rehearse);
        each("notify", &self.notify);
        each("checkpoint-signal", self.checkpoint_signal.as_slice());
        each("checkpoint-wait", number(self.checkpoint_wait).as_slice());
        each("stop-grace", number(self.stop_grace).as_slice());
        each("requeue-command", self.requeue_command.as_slice());
        if let Some(path) = &self.remedy_ledger {
            words.push(format!("--remedy-ledger={}", path.display()));
        }
        if self.act {
            words.push("--act".to_owned());
        }
        words
    }

    /// Sets the value of `key` from a file or a variable. The value is validated like on the command line. The key is
    /// the flag's name with `_` for `-`. Switches are not accepted. For a list, each word is a separate value.
    ///
    /// # Errors
    /// The problem, as a message.
    pub fn say(&mut self, key: &str, text: &str) -> Result<(), String> {
        let each = |parse: fn(&str) -> Result<String, String>| -> Result<Vec<String>, String> {
            text.split_whitespace().map(parse).collect()
        };
        let seconds = || {
            text.parse()
                .map(Some)
                .map_err(|_| "must be a number of seconds".to_owned())
        };
        match key {
            "on_fault" => self.on_fault = vec![on_fault(text)?],
            "remedy_limit" => self.remedy_limit = each(limit)?,
            "remedy_ledger" => self.remedy_ledger = Some(text.into()),
            "checkpoint_signal" => self.checkpoint_signal = Some(signal(text)?),
            "checkpoint_wait" => self.checkpoint_wait = seconds()?,
            "stop_grace" => self.stop_grace = seconds()?,
            "requeue_command" => self.requeue_command = Some(text.to_owned()),
            "notify" => self.notify = each(receiver)?,
            _ => return Err("is not an option of remedies".to_owned()),
        }
        Ok(())
    }

    /// Returns these options. Options that are not set here are taken from `weaker`.
    pub fn or(self, weaker: RemedyOptions) -> RemedyOptions {
        let first = |one: Vec<String>, other| if one.is_empty() { other } else { one };
        RemedyOptions {
            on_fault: first(self.on_fault, weaker.on_fault),
            act: self.act || weaker.act,
            remedy_limit: first(self.remedy_limit, weaker.remedy_limit),
            rehearse: first(self.rehearse, weaker.rehearse),
            remedy_ledger: self.remedy_ledger.or(weaker.remedy_ledger),
            checkpoint_signal: self.checkpoint_signal.or(weaker.checkpoint_signal),
            checkpoint_wait: self.checkpoint_wait.or(weaker.checkpoint_wait),
            stop_grace: self.stop_grace.or(weaker.stop_grace),
            requeue_command: self.requeue_command.or(weaker.requeue_command),
            notify: first(self.notify, weaker.notify),
        }
    }

    /// Returns true if no remedy and no receiver is set.
    pub fn is_default(&self) -> bool {
        self.on_fault.is_empty() && self.notify.is_empty()
    }
}

/// Returns `$XDG_STATE_HOME/paceline/remedies.json`. On most clusters the nodes share the home directory, so they share
/// this file too.
fn own_ledger() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let state = variable("XDG_STATE_HOME").map(PathBuf::from);
    let state = state.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".local/state")))?;
    Some(state.join("paceline/remedies.json"))
}

/// Returns `slurm:CLUSTER:NUMBER` of the Slurm job, which is the same for all its steps and restarts. An array task is
/// a job of its own. The parts of a heterogeneous job are one job, because they are requeued together. The cluster is
/// included because several clusters may share a home directory.
fn account(variable: &dyn Fn(&str) -> Option<String>) -> String {
    let array = || {
        Some(format!(
            "{}_{}",
            variable("SLURM_ARRAY_JOB_ID")?,
            variable("SLURM_ARRAY_TASK_ID")?
        ))
    };
    let number = variable("SLURM_HET_JOB_ID")
        .or_else(array)
        .or_else(|| variable("SLURM_JOB_ID"));
    let cluster = variable("SLURM_CLUSTER_NAME").unwrap_or_default();
    number.map_or_else(String::new, |number| format!("slurm:{cluster}:{number}"))
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn on_fault(words: &str) -> Result<String, String> {
    let checked = Rules::default().on_fault(words);
    checked
        .map(|()| words.to_owned())
        .map_err(|error| error.to_string())
}

fn limit(change: &str) -> Result<String, String> {
    let checked = Rules::default().limit(change);
    checked
        .map(|()| change.to_owned())
        .map_err(|error| error.to_string())
}

fn provenance(word: &str) -> Option<Provenance> {
    match word {
        "sim" => Some(Provenance::Sim),
        "replay" => Some(Provenance::Replay),
        "injected" => Some(Provenance::Injected),
        _ => None,
    }
}

fn rehearsal(word: &str) -> Result<String, String> {
    let known = provenance(word).ok_or("must be sim, replay or injected");
    known.map(|_| word.to_owned()).map_err(str::to_owned)
}

fn signal(name: &str) -> Result<String, String> {
    let known = order::signal(name).ok_or("must be USR1, USR2, HUP, INT, TERM, URG or WINCH");
    known
        .map(|_| name.trim_start_matches("SIG").to_owned())
        .map_err(str::to_owned)
}

fn receiver(words: &str) -> Result<String, String> {
    let checked = Receiver::of(words);
    checked
        .map(|_| words.to_owned())
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_of_slurm_has_its_number_and_others_their_name() {
        for (variables, wanted) in [
            ("", ""),
            (
                "SLURM_JOB_ID=9 SLURM_STEP_ID=0 SLURM_RESTART_COUNT=2 SLURM_CLUSTER_NAME=a",
                "slurm:a:9",
            ),
            ("SLURM_JOB_ID=9", "slurm::9"),
            (
                "SLURM_JOB_ID=12 SLURM_ARRAY_JOB_ID=10 SLURM_ARRAY_TASK_ID=3",
                "slurm::10_3",
            ),
            ("SLURM_JOB_ID=8 SLURM_HET_JOB_ID=7", "slurm::7"),
        ] {
            let variable = |name: &str| {
                let pairs = variables.split(' ').filter_map(|pair| pair.split_once('='));
                pairs
                    .into_iter()
                    .find(|(known, _)| *known == name)
                    .map(|(_, value)| value.to_owned())
            };
            assert_eq!(account(&variable), wanted, "{variables}");
        }
    }
}
