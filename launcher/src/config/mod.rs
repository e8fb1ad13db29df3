//! The configuration. Its sources, highest precedence first, are flags, PACELINE_* variables, three files, and
//! defaults.
//!
//! There are two stages: [`raw`] gathers text with its source, and [`Settings`] holds the parsed values. Nothing is
//! started or bound before the second stage is complete.

mod file;
pub(crate) mod keys;
pub(crate) mod lenient_settings;
mod live;
mod local;
mod observed;
mod page;
mod policy;
mod raw;
mod settings;
pub(crate) mod variables;

use std::fmt::Write as _;
use std::process::ExitCode;

use paceline_sidecar::Starter;
use paceline_sidecar::aggregator::control::Reload;
use serde_json::Value;

use crate::cli::{ConfigArgs, ConfigCommand, SettingArgs};
use crate::output::{self, Color, Paint, Style};

pub(crate) use live::run_dir as live_run_dir;
pub(crate) use page::PageArgs;
pub(crate) use raw::{Surroundings, is_read, leave_out, observed, take_up};
pub(crate) use settings::{Settings, StepLog, changes_of};

/// Loads the settings from all sources and checks them.
pub(crate) fn load(args: &SettingArgs) -> anyhow::Result<Settings> {
    Settings::check(&raw::gather(args, &Surroundings::real())?)
}

/// Returns the start values of a sidecar, which rereads policy values from variables and files.
pub(crate) fn starter() -> Starter {
    let reload = Reload::new(|| {
        let raw = raw::gather(&SettingArgs::default(), &Surroundings::real());
        let changes = raw.and_then(|raw| settings::changes(&raw));
        changes.map(|(changes, _)| changes).map_err(|usage| usage.0)
    });
    Starter {
        reload: Some(reload),
        ..Starter::default()
    }
}

/// `paceline config`.
pub(crate) fn command(args: &ConfigArgs, color: Color) -> anyhow::Result<ExitCode> {
    match &args.command {
        Some(ConfigCommand::Set(args)) => live::set(args),
        Some(ConfigCommand::Reload(args)) => live::reload(args),
        None => show(args, color),
    }
}

/// Shows the effective values, and with `--origin` their sources.
fn show(args: &ConfigArgs, color: Color) -> anyhow::Result<ExitCode> {
    let raw = raw::gather(&args.settings, &Surroundings::real())?;
    let settings = Settings::check(&raw)?;
    let style = Style::stdout(color);
    let mut rows: Vec<(String, String, String)> = keys::KEYS
        .iter()
        .map(|key| match raw.get(key.name) {
            Some(said) => (
                key.name.to_owned(),
                quoted(&said.text, key.kind),
                said.origin.to_string(),
            ),
            None => (key.name.to_owned(), key.default.to_owned(), "default".to_owned()),
        })
        .collect();
    for key in settings.policy.keys() {
        let value = policy_value(&key, settings.policy.get(&key).unwrap_or_default());
        let key = keys::shown_key(&key);
        let origin = raw
            .get(&key)
            .map_or("default".to_owned(), |said| said.origin.to_string());
        rows.push((key, value, origin));
    }
    if args.settings.json {
        return json(&rows);
    }
    let wide = |column: fn(&(String, String, String)) -> usize| rows.iter().map(column).max().unwrap_or(0);
    let (name, value) = (wide(|row| row.0.len()), wide(|row| row.1.len()));
    let is_narrow = name + " = ".len() + 12 > style.width;
    let mut text = String::new();
    for (key, said, origin) in &rows {
        let paint = if origin == "default" {
            Paint::Faint
        } else {
            Paint::Strong
        };
        if is_narrow {
            // Print the value in TOML syntax, on as many lines as needed.
            let origin = if args.origin {
                format!("  # {origin}")
            } else {
                String::new()
            };
            for line in output::wrap(&format!("{key} = {said}{origin}"), style.width) {
                let _ = writeln!(text, "{}", style.paint(paint, line));
            }
            continue;
        }
        let line = if args.origin {
            format!("{key:name$} = {said:value$}  # {origin}")
        } else {
            format!("{key:name$} = {said}")
        };
        let _ = writeln!(text, "{}", style.paint(paint, line.trim_end()));
    }
    output::show(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints one JSON object that maps each key to its value and its source. The value is `null` if it is unset and its
/// default is not a constant.
fn json(rows: &[(String, String, String)]) -> anyhow::Result<ExitCode> {
    let entry = |(key, text, origin): &(String, String, String)| {
        let value: Value = serde_json::from_str(text).unwrap_or(Value::Null);
        (
            key.clone(),
            serde_json::json!({ "value": value, "origin": origin }),
        )
    };
    let all: serde_json::Map<String, Value> = rows.iter().map(entry).collect();
    let text = serde_json::to_string(&serde_json::json!({ "schema_version": 1, "settings": all }))?;
    output::print(&(output::escaped(&text).into_owned() + "\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Formats a policy value in the syntax of a file.
fn policy_value(key: &str, value: f64) -> String {
    if key.starts_with(keys::OBSERVE) {
        (value != 0.0).to_string()
    } else if key == keys::PRICE && value == 0.0 {
        "(none)".to_owned()
    } else {
        value.to_string()
    }
}

fn quoted(text: &str, kind: keys::Kind) -> String {
    match kind {
        keys::Kind::Text | keys::Kind::Words(_) => serde_json::Value::from(text).to_string(),
        keys::Kind::Switch | keys::Kind::Number => text.to_owned(),
    }
}
