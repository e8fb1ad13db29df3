//! `paceline help`, `paceline completions`, and suggestions for mistyped commands and options.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::builder::PossibleValue;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Args, Command, CommandFactory as _};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::cli::exit_codes;
use crate::output::{self, Color, Style, Usage, nearest};

/// Help pages that do not describe a command.
const TOPICS: [&str; 1] = ["exit-codes"];

/// `paceline help`.
#[derive(Debug, Args)]
pub(crate) struct HelpArgs {
    /// A command (run, config set), or exit-codes [default: the list of commands].
    #[arg(value_name = "COMMAND")]
    words: Vec<String>,
}

/// `paceline completions`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples: source <(paceline completions bash); paceline completions zsh > \
~/.zfunc/_paceline; paceline completions fish > ~/.config/fish/completions/paceline.fish"
)]
pub(crate) struct CompletionsArgs {
    /// Shell.
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

/// Prints the help of a command, or a page.
pub(crate) fn command(args: &HelpArgs, color: Color) -> anyhow::Result<ExitCode> {
    let style = Style::stdout(color);
    let text = match args.words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["exit-codes"] => exit_codes::text(style.width),
        ref words => of_command(words, style.width)?,
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn of_command(words: &[&str], width: usize) -> Result<String, Usage> {
    let mut found = Cli::command().term_width(width);
    found.build();
    let mut path = "paceline".to_owned();
    for word in words {
        let known = |command: &Command| -> Vec<String> {
            let commands = command.get_subcommands().filter(|sub| !sub.is_hide_set());
            commands.map(|sub| sub.get_name().to_owned()).collect()
        };
        let Some(sub) = found.find_subcommand(word).cloned() else {
            let mut known = known(&found);
            if path == "paceline" {
                known.extend(TOPICS.map(str::to_owned));
            }
            let hint = match nearest(word, known.iter().map(String::as_str)) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None if known.is_empty() => format!("`{path}` has no commands below it"),
                None => format!("there are: {}", known.join(", ")),
            };
            return Err(Usage(format!("{path} has no command {word:?}; {hint}")));
        };
        path = format!("{path} {word}");
        found = sub;
    }
    Ok(found
        .bin_name(path)
        .term_width(width)
        .render_long_help()
        .to_string())
}

/// Prints a shell's completion script.
pub(crate) fn completions(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "paceline", &mut text);
    output::print(&String::from_utf8_lossy(&text))?;
    Ok(ExitCode::SUCCESS)
}

/// Replaces clap's suggestion with the option or command at the smallest edit distance. clap itself prefers common
/// prefixes, so that it suggests `--json` for `--jbo`.
pub(crate) fn suggest(mut problem: clap::Error, typed: &[OsString]) -> clap::Error {
    let words: Vec<&str> = typed.iter().filter_map(|word| word.to_str()).collect();
    let root = Cli::command();
    let (mut command, mut path) = (&root, "paceline".to_owned());
    for word in &words {
        match command.find_subcommand(word) {
            Some(sub) => {
                command = sub;
                path = format!("{path} {word}");
            }
            None if command.get_subcommands().next().is_none() => break,
            None => {}
        }
    }
    match (problem.kind(), problem.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(wrong))) if wrong.starts_with("--") => {
            let options = command.get_arguments().filter(|option| !option.is_hide_set());
            let mut options: Vec<&str> = options.filter_map(|option| option.get_long()).collect();
            options.extend(["color", "help", "version"]);
            let name = wrong
                .trim_start_matches("--")
                .split('=')
                .next()
                .unwrap_or_default();
            if let Some(near) = nearest(name, options) {
                let near = format!("--{near}");
                problem.insert(ContextKind::SuggestedArg, ContextValue::String(near));
                // Replace the usage text too, because it belongs to clap's own suggestion.
                let usage = command.clone().bin_name(path).render_usage();
                problem.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
            } else {
                problem.remove(ContextKind::SuggestedArg);
            }
        }
        // List the possible values for a missing argument too. clap lists them only after a wrong value.
        (ErrorKind::MissingRequiredArgument, _) => {
            let asked = command.get_positionals().find(|asked| asked.is_required_set());
            let values = asked.map(Arg::get_possible_values).unwrap_or_default();
            let names: Vec<&str> = values.iter().map(PossibleValue::get_name).collect();
            if !names.is_empty() {
                let tip = format!("there are: {}", names.join(", "));
                problem.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
            }
        }
        _ => {}
    }
    problem
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn complaint(words: &[&str]) -> String {
        let typed: Vec<OsString> = words.iter().map(OsString::from).collect();
        let all = [OsString::from("paceline")].into_iter().chain(typed.clone());
        suggest(Cli::try_parse_from(all).unwrap_err(), &typed).to_string()
    }

    #[test]
    fn the_option_that_was_meant_is_suggested() {
        for (words, meant) in [
            (&["run", "--jbo", "x", "--", "true"][..], "--job"),
            (&["run", "--quite", "--", "true"], "--quiet"),
            (&["report", "--hmtl", "x"], "--html"),
            (&["config", "set", "--run-dri", "x", "a", "1"], "--run-dir"),
            (&["top", "--colour", "always"], "--color"),
        ] {
            let text = complaint(words);
            assert!(text.contains(&format!("'{meant}'")), "{words:?}: {text}");
            assert!(!text.contains("--json"), "{text}");
        }
        let text = complaint(&["top", "--zzzzzzzzzz"]);
        assert!(!text.contains("similar"), "{text}");
    }

    #[test]
    fn a_missing_shell_is_told_with_those_there_are() {
        let text = complaint(&["completions"]);
        assert!(text.contains("bash, elvish, fish, powershell, zsh"), "{text}");
    }

    #[test]
    fn help_is_the_commands_own_or_says_which_was_meant() {
        for width in [40, 100] {
            let text = of_command(&["run"], width).unwrap();
            assert!(text.contains("Usage: paceline run ["), "{text}");
            // Ignore lines that consist of one word wider than the screen, because they cannot be broken.
            let long = text.lines().filter(|line| line.chars().count() > width);
            let long: Vec<&str> = long.filter(|line| line.trim().contains(' ')).collect();
            assert!(long.len() < 6, "{width}: {long:#?}");
        }
        assert!(of_command(&["config", "set"], 80).unwrap().contains("KEY VALUE"));
        let error = of_command(&["rnu"], 80).unwrap_err().to_string();
        assert!(error.contains("did you mean \"run\"?"), "{error}");
        let error = of_command(&["exit-code"], 80).unwrap_err().to_string();
        assert!(error.contains("did you mean \"exit-codes\"?"), "{error}");
    }

    #[test]
    fn options_of_run_stand_in_groups() {
        let text = of_command(&["run"], 100).unwrap();
        for heading in [
            "The job:",
            "Live page and metrics:",
            "Inputs:",
            "Output:",
            "Detection and cost:",
            "Preflight:",
            "Actions on findings:",
        ] {
            assert!(text.contains(&format!("\n{heading}\n")), "{heading}");
        }
    }
}
