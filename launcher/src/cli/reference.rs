//! docs/commands.md, docs/settings.md and docs/exit-codes.md are generated from the code by `REWRITE=1 cargo test -p
//! paceline --lib reference`.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

use clap::{Arg, Command};

use crate::command_line;
use crate::config::keys::{DETECTOR, KEYS};

/// The policy tables of constants, compiled into this test.
const TABLES: [&str; 3] = [
    include_str!("../../../health/policy/detector.toml"),
    include_str!("../../../health/policy/gpu.toml"),
    include_str!("../../../health/policy/port.toml"),
];

/// Asserts that a documentation page matches the text generated from the code.
fn in_step(page: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(page);
    if env::var_os("REWRITE").is_some() {
        fs::write(&path, text).unwrap();
    }
    assert!(
        fs::read_to_string(&path).unwrap_or_default() == text,
        "docs/{page} is out of step: REWRITE=1 cargo test -p paceline --lib reference"
    );
}

/// Appends the `--help` text of one command, without the common options, and then that of its subcommands.
fn section(out: &mut String, path: &str, command: &Command) {
    let mut shown = command
        .clone()
        .bin_name(path)
        .term_width(100)
        .disable_help_flag(true)
        .disable_version_flag(true)
        .disable_help_subcommand(true)
        .mut_args(|arg| arg.hide_env_values(true));
    let help = shown.render_long_help().to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    writeln!(out, "\n## {path}\n\n```text\n{}\n```", help.join("\n").trim_end()).unwrap();
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        section(out, &format!("{path} {}", sub.get_name()), sub);
    }
}

#[test]
fn every_command_is_on_its_page() {
    let mut page = "# Commands\n\nThe output of `--help` for each command; `-h` prints a shorter form. All \
        commands take `--color auto|always|never`.\n"
        .to_owned();
    for command in command_line().get_subcommands().filter(|sub| !sub.is_hide_set()) {
        section(&mut page, &format!("paceline {}", command.get_name()), command);
    }
    in_step("commands.md", &page);
}

#[test]
fn exit_codes_are_on_their_page() {
    in_step("exit-codes.md", &crate::cli::exit_codes::page());
}

/// Returns the help text of the `run` option that has the same name as this setting.
fn meaning(key: &str) -> String {
    let run = command_line().find_subcommand("run").unwrap().clone();
    let arg = run.get_arguments().find(|arg| arg.get_id() == key);
    let help = arg
        .and_then(Arg::get_help)
        .map(ToString::to_string)
        .unwrap_or_default();
    // Remove the default from the text, because it has its own column.
    let said = help
        .split(" [default:")
        .next()
        .unwrap()
        .trim_end_matches('.')
        .replace('|', "\\|")
        .replace('<', "\\<");
    assert!(!said.is_empty(), "--help of run does not describe {key}");
    said
}

/// Returns each constant with its value and its comment. In a group of constants, all of them get the comment before
/// the first.
fn constants() -> Vec<(String, String, String)> {
    let (mut found, mut table, mut said, mut closed) = (Vec::new(), String::new(), Vec::new(), false);
    for line in TABLES.iter().flat_map(|text| text.lines()).map(str::trim) {
        if let Some(comment) = line.strip_prefix('#') {
            if closed {
                said.clear();
            }
            said.push(comment.trim());
            closed = false;
        } else if let Some(name) = line.strip_prefix('[') {
            name.trim_end_matches(']').clone_into(&mut table);
            said.clear();
        } else if let Some((key, value)) = line.split_once(" = ") {
            found.push((format!("{table}.{key}"), value.to_owned(), said.join(" ")));
            closed = true;
        } else {
            said.clear();
        }
    }
    found
}

#[test]
fn every_setting_is_on_its_page() {
    let mut page = "# Settings\n\nEvery key of paceline.toml ([where values come from](config.md)). Each is also a flag (`--journal-bytes`) and a \
         variable (`PACELINE_JOURNAL_BYTES`).\n\n| key | default | |\n|---|---|---|\n"
        .to_owned();
    for key in KEYS {
        let default = key.default.trim_matches(['(', ')']);
        writeln!(page, "| `{}` | {default} | {} |", key.name, meaning(key.name)).unwrap();
    }
    page.push_str(
        "\n## Constants of the detector\n\nEach as `detector.NAME`, in `[detector...]` of a file or by `--set \
         NAME=VALUE`; lists can only be changed in the tables. With `observe.FINDING = true` a \
         [finding](findings.md) is reported, but sends no alert.\n\n| constant | default | why |\n|---|---|---|\n",
    );
    let constants = constants();
    for (name, value, why) in &constants {
        writeln!(page, "| `{name}` | {value} | {} |", why.replace('|', "\\|")).unwrap();
    }
    let policy = paceline_health::Policy::default();
    for key in policy.keys() {
        let is_there = constants.iter().any(|(name, _, _)| *name == key);
        assert!(
            is_there || !crate::config::keys::shown_key(&key).starts_with(DETECTOR),
            "{key} is in no table"
        );
    }
    in_step("settings.md", &page);
}
