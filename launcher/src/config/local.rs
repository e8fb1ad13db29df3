//! Restricts the configuration file in the working directory. It came with that directory, perhaps by `git clone`, or
//! from another user. Therefore it may configure monitoring, but must not start programs, load libraries or send this
//! user's secrets anywhere.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use paceline_sidecar::safe_file::Refused;
use paceline_sidecar::sink::notify::{Address, Kind, PAGERDUTY, Receiver};

use super::raw::Said;
use crate::output::{Color, Style, Usage, warning};
use crate::run;

/// Path of this file.
pub(super) const FILE: &str = "./paceline.toml";

/// Rejects values that the file must not set. `variable` looks up an environment variable.
pub(super) fn check(
    values: &[(String, Said)],
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<(), Usage> {
    for (key, said) in values {
        if let Some(why) = refusal(key, &said.text, variable) {
            return Err(Usage(format!(
                "{}: {key}: {why}, which a file in the working directory may not do: it comes with the \
                 directory, by git clone \
                 for example; set it in ~/.config/paceline/config.toml or /etc/paceline/config.toml, by {} or on \
                 the command line",
                said.origin,
                super::keys::variable(key)
            )));
        }
    }
    Ok(())
}

/// Returns the forbidden effect of a value, or `None` if the value is permitted.
fn refusal(key: &str, text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Option<&'static str> {
    match key {
        "requeue_command" => Some("runs a command"),
        "nvml_lib" => Some("loads a library"),
        "notify" => text.split_whitespace().find_map(of_receiver),
        "otlp" if text != "env" && sends_headers(variable) => {
            Some("would send the secrets in OTEL_EXPORTER_OTLP_HEADERS to an address from that file")
        }
        _ => None,
    }
}

fn of_receiver(words: &str) -> Option<&'static str> {
    // Invalid receivers are reported elsewhere.
    let receiver = Receiver::of(words).ok()?;
    match receiver.kind {
        Kind::Exec(_) => Some("runs a program"),
        Kind::Webhook(Address::Open(_), proof) if proof.bearer.is_some() => {
            Some("would send a secret (bearer=) to an address from that file")
        }
        Kind::PagerDuty(Address::Open(url), _) if url != PAGERDUTY => {
            Some("would send a secret to an address from that file (url=)")
        }
        _ => None,
    }
}

/// Returns true if pushed metrics would carry headers from the environment. If the environment sets no endpoint, these
/// headers go to any endpoint that a file names.
fn sends_headers(variable: &dyn Fn(&str) -> Option<String>) -> bool {
    let is_set = |what: &str| {
        ["OTEL_EXPORTER_OTLP_METRICS", "OTEL_EXPORTER_OTLP"]
            .iter()
            .any(|start| variable(&format!("{start}_{what}")).is_some())
    };
    is_set("HEADERS") && !is_set("ENDPOINT")
}

static TOLD: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Warns that another user's file is not read. Prints the warning once.
pub(super) fn tell_foreign(path: &Path, refused: &Refused) {
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    if told.insert(path.to_owned()) && !run::is_follower() {
        let text = format_args!(
            "{}: not read: {refused}; if you trust it, copy it to your own configuration file",
            path.display()
        );
        warning(Style::stderr(Color::Auto), text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_such_a_file_may_not_say() {
        let check = |key: &str, text: &str, variables: &[&str]| {
            refusal(key, text, &|name| {
                variables.contains(&name).then(|| "x".to_owned())
            })
        };
        let headers = "OTEL_EXPORTER_OTLP_HEADERS";
        for (key, text, variables, part) in [
            (
                "requeue_command",
                "sbatch train.sh",
                &[] as &[&str],
                "runs a command",
            ),
            ("nvml_lib", "./libnvidia-ml.so", &[], "loads a library"),
            ("notify", "slack=env:SLACK exec=./x", &[], "runs a program"),
            ("notify", "exec=x,severity=critical", &[], "runs a program"),
            (
                "notify",
                "webhook=https://h/,bearer=env:WANDB_API_KEY",
                &[],
                "would send a secret (bearer=)",
            ),
            (
                "notify",
                "pagerduty=env:KEY,url=https://h/",
                &[],
                "would send a secret",
            ),
            (
                "otlp",
                "http://h:4318",
                &[headers],
                "would send the secrets in OTEL",
            ),
        ] {
            let why = check(key, text, variables).unwrap_or_default();
            assert!(why.starts_with(part), "{key} = {text}: {why}");
        }
        for (key, text, variables) in [
            (
                "notify",
                "alertmanager=http://am:9093 slack=env:SLACK",
                &[] as &[&str],
            ),
            ("notify", "webhook=https://h/,hmac=env:SIGN", &[]),
            ("notify", "webhook=env:HOOK,bearer=env:TOKEN", &[]),
            ("notify", "pagerduty=env:KEY", &[]),
            ("otlp", "http://h:4318", &[]),
            ("otlp", "env", &[headers]),
            ("otlp", "http://h:4318", &[headers, "OTEL_EXPORTER_OTLP_ENDPOINT"]),
            ("on_fault", "gpu-lost=requeue", &[]),
        ] {
            assert_eq!(check(key, text, variables), None, "{key} = {text}");
        }
    }
}
